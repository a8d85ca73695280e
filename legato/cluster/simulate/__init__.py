"""Simulation of a cluster, for capacity planning: `python -m legato.cluster.simulate`.

Pure and seeded, without Ray and torch. It uses the router and the scaling rule of the cluster, and measured step times.
"""
