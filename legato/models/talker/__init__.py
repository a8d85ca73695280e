"""The talker: the LM over time, one position per frame. Its state is the KV slot of one sequence."""
