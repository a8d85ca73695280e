"""Play speech while it is generated, and print the time to first audio. Needs: pip install "legato-tts[play]"

python examples/stream_to_speaker.py ["text"]
"""

import sys
import time

import legato
from legato.audio.play import open_player

text = sys.argv[1] if len(sys.argv) > 1 else "The first words are played before the last ones exist."

# tts.stream(text).play() does the same. This loop shows where the packets are.
with legato.load() as tts, open_player(tts.sample_rate_hz) as player:
    started = time.perf_counter()
    for packet in tts.stream(text):
        if packet.first_sample == 0:
            print(f"first audio after {1000 * (time.perf_counter() - started):.0f} ms")
        player.write(packet)
