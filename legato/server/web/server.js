// The routes of the server that the page uses, beside the WebSocket of `link.js`.
//
// `Server` owns the API key, where one is asked for, for as long as the page is open; it is written nowhere. Every answer
// is JSON or an error whose message is the server's own. Calls no other machine.

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
  }

  // The loaded model: its id, whether it is `ready`, and what it can be asked for.
  async model() {
    const { data } = await this.call("GET", "/v1/models");
    return { id: data[0].id, ...data[0].legato };
  }

  voices() {
    return this.call("GET", "/v1/audio/voices");
  }

  keepVoice(name, wav, transcript) {
    const form = new FormData();
    form.set("name", name);
    form.set("ref_text", transcript);
    form.set("audio_sample", wav, "recording.wav");
    return this.call("POST", "/v1/audio/voices", form);
  }

  forgetVoice(name) {
    return this.call("DELETE", `/v1/audio/voices/${encodeURIComponent(name)}`);
  }

  // What the page measured goes to the request's record. Nothing depends on it, so a failure is only noted.
  async reportPlayout(requestId, figures) {
    try {
      await this.call("POST", `/v1/requests/${requestId}/playout`, JSON.stringify(figures));
    } catch (error) {
      if (!(error instanceof ServerError)) return; // the server is gone, which the session says
      console.warn("the first sound was not taken:", error.message);
    }
  }

  async call(method, path, body) {
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    if (typeof body === "string") headers["Content-Type"] = "application/json";
    const answer = await fetch(path, { method, headers, body });
    this.needsKey = answer.status === 401;
    if (answer.status === 204) return null;
    const content = await answer.json().catch(() => null);
    if (!answer.ok) throw new ServerError(answer.status, content);
    return content;
  }
}
