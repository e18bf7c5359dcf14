// Sign-in form of both pages. The key is sent once; the browser then has a cookie that scripts cannot read.

import { call } from "./api.js";
import { announce, byId, setText, setVisible, showNotice } from "./dom.js";
import { load, remove, save } from "./storage.js";

const HAS_SIGNED_IN = "signed-in";

/** Return {id, role, name} of the caller. Shows the form until a key with an allowed role is given. */
export async function signIn(allowedRoles) {
  // Before the first sign-in the server would answer 401, and the browser would log an error.
  let me = load(HAS_SIGNED_IN) ? await currentCaller() : null;
  let problem = "";
  while (!me || !allowedRoles.includes(me.role)) {
    if (me) problem = wrongRole(me, allowedRoles);
    me = await showForm(problem);
    problem = "";
  }
  save(HAS_SIGNED_IN, true);
  setVisible("sign-in", false);
  return me;
}

export async function signOut() {
  try {
    await call("DELETE", "v1/session");
  } catch (error) {
    // The cookie is still valid. Only the server can end the session.
    if (!error.isSignedOut) { showNotice(`Not signed out: ${error.message}`, { kind: "problem" }); return; }
  }
  remove(HAS_SIGNED_IN);
  location.reload();
}

async function currentCaller() {
  for (let seconds = 1; ; seconds = Math.min(20, seconds * 2)) {
    try {
      return await call("GET", "v1/session");
    } catch (error) {
      if (!error.isTemporary) return null;
      setVisible("sign-in", true);
      setText("sign-in-note", "The server cannot be reached. Trying again.");
      await new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });
    }
  }
}

function wrongRole(me, allowedRoles) {
  return `That is a key for a${me.role === "client" ? "" : "n"} ${me.role}; this page needs a key for an ${allowedRoles.join(" or an ")}.`;
}

function showForm(problem) {
  const form = byId("sign-in-form");
  const field = byId("sign-in-key");
  const keyInLink = new URLSearchParams(location.hash.slice(1)).get("key");
  if (keyInLink) {
    // A link may hold a key after the #, which browsers do not send. The person still presses the button.
    field.value = keyInLink;
    history.replaceState(null, "", location.pathname);
  }
  setVisible("sign-in", true);
  showProblem(problem);
  (field.value ? byId("sign-in-button") : field).focus();
  return new Promise((resolve) => {
    form.onsubmit = async (event) => {
      event.preventDefault();
      const me = await sendKey(field.value.trim());
      if (me) {
        field.value = "";
        resolve(me);
      }
    };
  });
}

async function sendKey(key) {
  byId("sign-in-button").disabled = true;
  showProblem("");
  try {
    return await call("POST", "v1/session", { body: { key } });
  } catch (error) {
    showProblem(error.isSignedOut ? "This server does not know that key, or the key was revoked." : error.message);
    return null;
  } finally {
    byId("sign-in-button").disabled = false;
  }
}

function showProblem(sentence) {
  setText("sign-in-note", sentence);
  byId("sign-in-key").setAttribute("aria-invalid", sentence ? "true" : "false");
  if (sentence) announce(sentence);
}
