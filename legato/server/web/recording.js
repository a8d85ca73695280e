// A reference recording made in the browser: from the microphone or from a file, to a short mono WAV.
//
// The browser decodes whatever it can read, so the server is sent one plain format. Owns the microphone from `record` to
// its end and releases it in every case. Sends nothing.

export const MOST_S = 30;
export const LEAST_S = 1;

// Raised with a key of `strings.js` as its message.
export class RecordingError extends Error {}

export function canRecord() {
  return Boolean(navigator.mediaDevices?.getUserMedia && globalThis.MediaRecorder);
}

// Records until `stop` is called on what is returned; `done` then gives the bytes in the browser's own format.
export async function record() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: false } });
  } catch {
    throw new RecordingError("microphoneRefused");
  }
  const recorder = new MediaRecorder(stream);
  const pieces = [];
  recorder.ondataavailable = ({ data }) => pieces.push(data);
  const done = new Promise((resolve) => {
    recorder.onstop = () => {
      for (const track of stream.getTracks()) track.stop();
      resolve(new Blob(pieces, { type: recorder.mimeType }).arrayBuffer());
    };
  });
  recorder.start();
  return { stop: () => recorder.state !== "inactive" && recorder.stop(), done, startedMs: performance.now() };
}

// Bytes of any sound file -> `{samples, seconds, cut, wav}`, mono at `rateHz`.
export async function reference(bytes, rateHz) {
  let sound;
  try {
    sound = await new OfflineAudioContext(1, 1, rateHz).decodeAudioData(bytes);
  } catch {
    throw new RecordingError("unreadable");
  }
  const length = Math.min(sound.length, MOST_S * rateHz);
  if (length < LEAST_S * rateHz) throw new RecordingError("tooShort");
  const samples = new Float32Array(length);
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1) {
    const data = sound.getChannelData(channel);
    for (let at = 0; at < length; at += 1) samples[at] += data[at] / sound.numberOfChannels;
  }
  return { samples, seconds: length / rateHz, cut: sound.length > length, wav: wav(samples, rateHz) };
}

export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// 16 bit PCM in RIFF.
function wav(samples, rateHz) {
  const data = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const word = (at, letters) => [...letters].forEach((letter, index) => data.setUint8(at + index, letter.charCodeAt(0)));
  word(0, "RIFF");
  data.setUint32(4, 36 + 2 * samples.length, true);
  word(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true);
  data.setUint16(22, 1, true);
  data.setUint32(24, rateHz, true);
  data.setUint32(28, 2 * rateHz, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  word(36, "data");
  data.setUint32(40, 2 * samples.length, true);
  for (const [index, sample] of samples.entries()) {
    data.setInt16(44 + 2 * index, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
  }
  return new Blob([data.buffer], { type: "audio/wav" });
}
