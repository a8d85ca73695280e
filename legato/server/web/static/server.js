// HTTP client for the server's routes; `link.js` has the WebSocket.
//
// A `Server` keeps the API key, if one is required, in memory only while the page is open. Responses are JSON; errors carry
// the server's message.

export class ServerError extends Error {
  constructor(status, body) {
    super(body?.error?.message ?? `${status}`);
    this.status = status;
    this.field = body?.error?.param ?? "";
  }
}

export class Server {
  constructor() {
    this.key = "";
    this.needsKey = false;
    this.modelId = "";
  }

  // The loaded models: id, whether it is `ready`, and capabilities. The default model is the first. Aliases are left out.
  async models() {
    const { data } = await this.call("GET", "/v1/models");
    return data.filter((entry) => entry.legato).map((entry) => ({ id: entry.id, ...entry.legato }));
  }

  voices() {
    return this.call("GET", `/v1/audio/voices?format=names&model=${encodeURIComponent(this.modelId)}`);
  }

  uploadVoice(name, wav, transcript) {
    const form = new FormData();
    form.set("name", name);
    form.set("ref_text", transcript);
    form.set("audio_sample", wav, "recording.wav");
    return this.call("POST", "/v1/audio/voices", form);
  }

  deleteVoice(name) {
    return this.call("DELETE", `/v1/audio/voices/${encodeURIComponent(name)}`);
  }

  // Send the playback report of a request. Nothing depends on it, so a failure is only logged.
  async reportPlayback(requestId, report) {
    try {
      await this.call("POST", `/v1/requests/${requestId}/playout`, JSON.stringify(report));
    } catch (error) {
      if (!(error instanceof ServerError)) return; // no connection: the session shows that
      console.warn("the server rejected the playback report:", error.message);
    }
  }

  async call(method, path, body) {
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    if (typeof body === "string") headers["Content-Type"] = "application/json";
    const response = await fetch(new URL(`..${path}`, import.meta.url), { method, headers, body });
    this.needsKey = response.status === 401;
    if (response.status === 204) return null;
    const content = await response.json().catch(() => null);
    if (!response.ok) throw new ServerError(response.status, content);
    return content;
  }
}
