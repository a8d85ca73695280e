"""Synthesize a text and save it. The suffix selects the format: .wav .flac .mp3 .opus .ogg .aac .pcm

python examples/save_file.py ["text"] [out.wav]
"""

import sys

import legato

text = sys.argv[1] if len(sys.argv) > 1 else "Hello from Legato."
path = sys.argv[2] if len(sys.argv) > 2 else "out.wav"

with legato.load() as tts:
    speech = tts.say(text, voice="heart", seed=7)
    speech.save(path)
    print(f"wrote {path}: {speech.seconds:.2f} s, ended by {speech.finish_reason.value}")

    # The same while the audio is being generated: the file grows packet by packet.
    tts.stream(text, voice="michael").save(path)
