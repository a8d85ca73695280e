"""Generation: sequences are scheduled, run, decoded and emitted as packets. Owns every tensor that is not a weight."""
