// A picture dropped in, pasted, or chosen; made smaller here where it is too large to send.
import { Problem } from "./api.js";
import { announce, fresh, make } from "./dom.js";
import { loaded } from "./over.js";

const KINDS = ["image/png", "image/jpeg", "image/webp"], MOST_BYTES = 4_000_000, MOST_PIXELS = 8_000_000, SIDE = 1600;

function address(blob) {
  return new Promise((resolve, refuse) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => refuse(new Problem("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

// As the server takes it: a PNG, JPEG or WebP of a moderate size, as a data: URL.
async function prepared(file) {
  const given = await address(file);
  let image;
  try {
    image = await loaded(given);
  } catch {
    throw new Problem(`${file.name || "This"} is not a picture that this browser can read; choose a PNG, JPEG or WebP.`);
  }
  const large = file.size > MOST_BYTES || image.width * image.height > MOST_PIXELS;
  if (!large && KINDS.includes(file.type)) return given;
  const scale = Math.min(1, SIDE / Math.max(image.width, image.height, 1));
  const [width, height] = [image.width, image.height].map(side => Math.max(1, Math.round(side * scale)));
  const canvas = make("canvas", { width, height });
  canvas.getContext("2d").drawImage(image, 0, 0, width, height);
  return canvas.toDataURL(large ? "image/jpeg" : "image/png", 0.92);
}

// A place for one; when it has come, the form is asked.
export function well(form, { closed }) {
  const input = make("input", { type: "file", accept: "image/*", id: fresh("picture"), class: "hidden", tabindex: -1 });
  const shown = make("img", { alt: "", hidden: true });
  const words = make("span", { class: "quiet" }, "Drop a picture here, paste one, or");
  const button = make("button", { type: "button", onclick: () => input.click() }, "choose a file");
  const box = make("div", { class: "well" }, shown, words, button, input);
  let picture = null;
  const show = name => {
    shown.src = picture;
    shown.hidden = false;
    shown.alt = `the picture: ${name}`;
    words.textContent = name;
    button.textContent = "choose another";
  };
  const take = async file => {
    if (!file) return;
    form.say(null);
    try {
      picture = await prepared(file);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return form.say(error.message);
    }
    show(file.name || "a pasted picture");
    announce(`${words.textContent} is here.`);
    form.submit();
  };
  input.addEventListener("change", () => { take(input.files[0]); input.value = ""; });
  for (const name of ["dragover", "drop", "dragleave"]) box.addEventListener(name, event => {
    event.preventDefault();
    box.classList.toggle("over", name === "dragover");
    if (name === "drop") take([...event.dataTransfer.files][0]);
  });
  document.addEventListener("paste", event => {
    const file = [...event.clipboardData?.files ?? []].find(one => one.type.startsWith("image/"));
    if (file) { event.preventDefault(); take(file); }
  }, { signal: closed });
  for (const name of ["dragover", "drop"]) addEventListener(name, event => event.preventDefault(), { signal: closed });   // beside it, too
  form.fields.append(box);
  return {
    box,
    set value(given) { picture = given; show("the same picture"); },
    asked() {
      if (!picture) throw new Problem("There is no picture yet: drop one into the field above, or choose a file.");
      return picture;
    },
  };
}
