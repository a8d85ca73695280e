// Entry point of the page: connects to the server, creates the sessions, and handles page-wide input.
//
// It owns the list of session cards, the audio context that they share, and the language and theme of the interface.

import { Card } from "./card.js";
import { initialLanguage, language, onLanguageChange, setLanguage, text } from "./language.js";
import { Server, ServerError } from "./server.js";
import { Sound } from "./sound.js";
import { SAMPLES } from "./strings.js";
import { restoreTheme, toggleTheme } from "./theme.js";
import { SharedVoices } from "./voices.js";

const MAX_SESSIONS = 4;
const RETRY_MS = 1500;

const find = (id) => document.getElementById(id);
const server = new Server();
const shared = new SharedVoices(server);
const cards = [];
let model = null;
let sound = null;

// --- the server --------------------------------------------------------------------------------------------------------

async function connect() {
  try {
    const models = await server.models();
    const requested = new URLSearchParams(location.search).get("model");
    model = models.find((each) => each.id === requested) ?? models[0];
    server.modelId = model.id;
    showModels(models);
    await shared.reload();
  } catch (error) {
    find("key").hidden = !server.needsKey;
    showServer(server.needsKey ? "warming" : "gone", "");
    if (server.needsKey) find("key-field").focus();
    else if (error instanceof ServerError || error instanceof TypeError) setTimeout(connect, RETRY_MS);
    else throw error;
    return;
  }
  find("key").hidden = true;
  onConnected();
}

function onConnected() {
  sound ??= new Sound(model.sample_rate);
  showServer(model.ready ? "ready" : "warming", model.id);
  if (!cards.length) addCard();
  if (!model.ready) setTimeout(connect, RETRY_MS);
}

function showServer(state, id) {
  find("server").dataset.state = state;
  find("server-state").textContent = text(state);
  find("server-model").textContent = id;
}

// The list of models, if there are several. Selecting one reloads the page with `?model=ID`.
function showModels(models) {
  const list = find("model");
  list.hidden = models.length < 2;
  find("server-model").hidden = !list.hidden;
  if (list.options.length === models.length) return;
  list.replaceChildren(...models.map((each) => new Option(each.id, each.id, false, each.id === model.id)));
}

// --- sessions ----------------------------------------------------------------------------------------------------------

function addCard() {
  const number = Math.max(0, ...cards.map((card) => card.number)) + 1;
  const card = new Card(number, { server, sound, model, shared, onRemove });
  if (!cards.length && number === 1) card.find("text").value = sampleText();
  cards.push(card);
  find("sessions").append(card.root);
  updateCount();
  return card;
}

function onRemove(card) {
  cards.splice(cards.indexOf(card), 1);
  if (!cards.length) addCard();
  updateCount();
  find("add").focus();
}

function updateCount() {
  find("add").disabled = cards.length >= MAX_SESSIONS;
  find("all").hidden = cards.length < 2;
  document.documentElement.dataset.sessions = cards.length;
}

// An initial text in a language of the loaded model.
function sampleText() {
  return language() === "zh" && model.languages.includes("chinese") ? SAMPLES.chinese : SAMPLES.english;
}

// --- the whole page ----------------------------------------------------------------------------------------------------

function addListeners() {
  find("language").addEventListener("click", () => setLanguage(language() === "en" ? "zh" : "en"));
  find("theme").addEventListener("click", toggleTheme);
  find("model").addEventListener("change", (event) => {
    location.search = new URLSearchParams({ model: event.target.value });
  });
  find("add").addEventListener("click", () => addCard().find("text").focus());
  find("all").addEventListener("click", () => cards.forEach((card) => card.speak()));
  find("key").addEventListener("submit", (event) => {
    event.preventDefault();
    server.key = find("key-field").value.trim();
    connect();
  });
  // Escape outside a session stops all sessions.
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") cards.forEach((card) => card.session.stop());
  });
  // Open the audio context at the first gesture, so that the first utterance does not wait for it.
  for (const gesture of ["pointerdown", "keydown"]) addEventListener(gesture, openAudio, { once: true });
}

function openAudio() {
  if (Sound.allowed) sound?.context().catch(() => {}); // the first utterance tries again and shows the error
}

onLanguageChange(() => {
  for (const card of cards) card.relabel();
  showServer(find("server").dataset.state, model?.id ?? "");
});
shared.onChange = () => cards.forEach((card) => card.voices.draw());

restoreTheme();
setLanguage(initialLanguage());
addListeners();
find("insecure").hidden = Sound.allowed;
connect();
