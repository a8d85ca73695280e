// Reference recordings in the browser: from the microphone or a file to a short mono WAV.
//
// The browser decodes any format that it supports, so the server always receives WAV. `record` holds the microphone until the
// recording ends and always releases it.

export const MAX_S = 30;
export const MIN_S = 1;

// The message is a key of `strings.js`.
export class RecordingError extends Error {}

export function canRecord() {
  return Boolean(navigator.mediaDevices?.getUserMedia && globalThis.MediaRecorder);
}

// Record until `stop` is called on the result; `done` then resolves with the bytes in the browser's recording format.
export async function record() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: false } });
  } catch {
    throw new RecordingError("microphoneDenied");
  }
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const done = new Promise((resolve) => {
    recorder.onstop = () => {
      for (const track of stream.getTracks()) track.stop();
      resolve(new Blob(parts, { type: recorder.mimeType }).arrayBuffer());
    };
  });
  recorder.start();
  return { stop: () => recorder.state !== "inactive" && recorder.stop(), done, startedMs: performance.now() };
}

// Decode an audio file to `{samples, seconds, truncated, wav}`, mono at `rateHz`.
export async function decodeReference(bytes, rateHz) {
  let audio;
  try {
    audio = await new OfflineAudioContext(1, 1, rateHz).decodeAudioData(bytes);
  } catch {
    throw new RecordingError("undecodable");
  }
  const length = Math.min(audio.length, MAX_S * rateHz);
  if (length < MIN_S * rateHz) throw new RecordingError("tooShort");
  const samples = new Float32Array(length);
  for (let channel = 0; channel < audio.numberOfChannels; channel += 1) {
    const data = audio.getChannelData(channel);
    for (let index = 0; index < length; index += 1) samples[index] += data[index] / audio.numberOfChannels;
  }
  return { samples, seconds: length / rateHz, truncated: audio.length > length, wav: encodeWav(samples, rateHz) };
}

export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// 16-bit PCM in RIFF.
function encodeWav(samples, rateHz) {
  const data = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const writeAscii = (offset, string) =>
    [...string].forEach((letter, index) => data.setUint8(offset + index, letter.charCodeAt(0)));
  writeAscii(0, "RIFF");
  data.setUint32(4, 36 + 2 * samples.length, true);
  writeAscii(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true);
  data.setUint16(22, 1, true);
  data.setUint32(24, rateHz, true);
  data.setUint32(28, 2 * rateHz, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  writeAscii(36, "data");
  data.setUint32(40, 2 * samples.length, true);
  for (const [index, sample] of samples.entries()) {
    data.setInt16(44 + 2 * index, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
  }
  return new Blob([data.buffer], { type: "audio/wav" });
}
