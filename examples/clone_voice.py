"""Clone the voice of a recording. Clone only voices that you have the right to use.

python examples/clone_voice.py me.wav "What I say in the recording." "What it should say." [MODEL] [out.wav]
"""

import sys

import legato

recording, transcript, text, *rest = sys.argv[1:]
model = rest[0] if rest else "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
path = rest[1] if len(rest) > 1 else "cloned.wav"

with legato.load(model) as tts:
    # With the transcript the model continues the recording, and the clone is most similar.
    # The voice is encoded once and cached, so later requests with the same recording start faster.
    tts.say(text, clone=recording, ref_text=transcript, max_frames=0 if len(rest) < 3 else int(rest[2])).save(path)
    print(f"wrote {path}")
