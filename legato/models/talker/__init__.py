"""The LM over time: one position a frame, from the prompt to the end of speech. Its state is one sequence's KV rows."""
