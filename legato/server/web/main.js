// The page from its loading on: what the server is and can do, the sessions on it, and what belongs to the whole page.
//
// Owns the list of cards, the one audio context that they share, and the language and colours of the interface. Knows no
// protocol.

import { Card } from "./card.js";
import { chooseLanguage, language, onLanguage, rememberedLanguage, text } from "./language.js";
import { Server, ServerError } from "./server.js";
import { Sound } from "./sound.js";
import { SAMPLES } from "./strings.js";
import { restoreTheme, toggleTheme } from "./theme.js";
import { SharedVoices } from "./voices.js";

const MOST_SESSIONS = 4;
const ASK_AGAIN_MS = 1500;

const find = (id) => document.getElementById(id);
const server = new Server();
const shared = new SharedVoices(server);
const cards = [];
let model = null;
let sound = null;

// --- the server --------------------------------------------------------------------------------------------------------

async function meet() {
  try {
    model = await server.model();
    await shared.reload();
  } catch (error) {
    find("key").hidden = !server.needsKey;
    show(server.needsKey ? "warming" : "gone", "");
    if (server.needsKey) find("key-field").focus();
    else if (error instanceof ServerError || error instanceof TypeError) setTimeout(meet, ASK_AGAIN_MS);
    else throw error;
    return;
  }
  find("key").hidden = true;
  begin();
}

function begin() {
  sound ??= new Sound(model.sample_rate);
  show(model.ready ? "ready" : "warming", model.id);
  if (!cards.length) addCard();
  if (!model.ready) setTimeout(meet, ASK_AGAIN_MS);
}

function show(state, id) {
  find("server").dataset.state = state;
  find("server-state").textContent = text(state);
  find("server-model").textContent = id;
}

// --- sessions ----------------------------------------------------------------------------------------------------------

function addCard() {
  const number = Math.max(0, ...cards.map((card) => card.number)) + 1;
  const card = new Card(number, { server, sound, model, shared, removed });
  if (!cards.length && number === 1) card.find("text").value = sample();
  cards.push(card);
  find("sessions").append(card.root);
  count();
  return card;
}

function removed(card) {
  cards.splice(cards.indexOf(card), 1);
  if (!cards.length) addCard();
  count();
  find("add").focus();
}

function count() {
  find("add").disabled = cards.length >= MOST_SESSIONS;
  find("all").hidden = cards.length < 2;
  document.documentElement.dataset.sessions = cards.length;
}

// Something that the loaded model can say.
function sample() {
  return language() === "zh" && model.languages.includes("chinese") ? SAMPLES.chinese : SAMPLES.english;
}

// --- the whole page ----------------------------------------------------------------------------------------------------

function listen() {
  find("language").addEventListener("click", () => chooseLanguage(language() === "en" ? "zh" : "en"));
  find("theme").addEventListener("click", toggleTheme);
  find("add").addEventListener("click", () => addCard().find("text").focus());
  find("all").addEventListener("click", () => cards.forEach((card) => card.speak()));
  find("key").addEventListener("submit", (event) => {
    event.preventDefault();
    server.key = find("key-field").value.trim();
    meet();
  });
  // Escape silences everything, wherever the focus is outside a session.
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") cards.forEach((card) => card.session.stop());
  });
  // The first gesture opens the audio, so that the first utterance need not wait for it.
  for (const gesture of ["pointerdown", "keydown"]) addEventListener(gesture, warm, { once: true });
}

function warm() {
  if (Sound.allowed) sound?.context().catch(() => {}); // the first utterance tries again, and says what is wrong
}

onLanguage(() => {
  for (const card of cards) card.relabel();
  show(find("server").dataset.state, model?.id ?? "");
});
shared.changed = () => cards.forEach((card) => card.voices.draw());

restoreTheme();
chooseLanguage(rememberedLanguage());
listen();
find("insecure").hidden = Sound.allowed;
meet();
