// Notes every quantum that reaches it, with its place and the wall clock, and makes no sound.

class Tap extends AudioWorkletProcessor {
  process(inputs) {
    const samples = inputs[0][0] ? inputs[0][0].slice() : new Float32Array(128);
    this.port.postMessage({ frame: currentFrame, clockMs: Date.now(), samples }, [samples.buffer]);
    return true;
  }
}

registerProcessor("tap", Tap);
