// Records every render quantum of its input, with frame number and wall clock. It outputs nothing.

class Tap extends AudioWorkletProcessor {
  process(inputs) {
    const samples = inputs[0][0] ? inputs[0][0].slice() : new Float32Array(128);
    this.port.postMessage({ frame: currentFrame, clockMs: Date.now(), samples }, [samples.buffer]);
    return true;
  }
}

registerProcessor("tap", Tap);
