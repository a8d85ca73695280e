"""Legato beside the peers that install from the package index, on one machine, in one go. No part of the package."""
