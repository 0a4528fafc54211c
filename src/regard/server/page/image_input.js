// An image input: dropped, pasted or chosen; downscaled in the browser where it is too large to send.
import { ApiError } from "./api.js";
import { announce, element, uniqueId } from "./dom.js";
import { loadImage, pngUrl } from "./overlay.js";

const MEDIA_TYPES = ["image/png", "image/jpeg", "image/webp"], MAX_BYTES = 4_000_000, MAX_PIXELS = 8_000_000, MAX_SIDE = 1600;

function toDataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new ApiError("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

// Return a data: URL of a PNG, JPEG or WebP of moderate size, as the server accepts it.
async function prepareImage(file) {
  const url = await toDataUrl(file);
  let image;
  try {
    image = await loadImage(url);
  } catch {
    throw new ApiError(`${file.name || "This"} is not an image that this browser can read; choose a PNG, JPEG or WebP.`);
  }
  const large = file.size > MAX_BYTES || image.width * image.height > MAX_PIXELS;
  if (!large && MEDIA_TYPES.includes(file.type)) return url;
  const scale = Math.min(1, MAX_SIDE / Math.max(image.width, image.height, 1));
  const [width, height] = [image.width, image.height].map(side => Math.max(1, Math.round(side * scale)));
  const canvas = element("canvas", { width, height });
  canvas.getContext("2d").drawImage(image, 0, 0, width, height);
  return canvas.toDataURL(large ? "image/jpeg" : "image/png", 0.92);
}

// The last image, kept while the tab is open: it is too large for the address.
const STORAGE_KEY = "regard-image";
let last = storedImage();

function storedImage() {
  try { return JSON.parse(sessionStorage.getItem(STORAGE_KEY)); } catch { return null; }
}

function storeImage(url, name) {
  last = { url, name };
  try { sessionStorage.setItem(STORAGE_KEY, JSON.stringify(last)); } catch { /* too large, or a private window */ }
}

// Add a drop zone to a form; a new image submits the form. It opens with the last image, else with an example.
export function imageInput(form, { closed, examples }) {
  const input = element("input", { type: "file", accept: "image/*", id: uniqueId("image"), class: "hidden", tabindex: -1, "aria-label": "image file" });
  const preview = element("img", { alt: "", hidden: true });
  const caption = element("span", { class: "muted" }, "Drop an image here, paste one, or");
  const button = element("button", { type: "button", onclick: () => input.click() }, "choose a file");
  const box = element("div", { class: "dropzone" }, preview, caption, button, input);
  let image = null;
  const show = name => {
    preview.src = image;
    preview.hidden = false;
    preview.alt = `the image: ${name}`;
    caption.textContent = name;
    button.textContent = "choose another";
  };
  const accept = async file => {
    if (!file) return;
    form.showError(null);
    try {
      image = await prepareImage(file);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return form.showError(error.message);
    }
    show(file.name || "a pasted image");
    storeImage(image, caption.textContent);
    announce(`${caption.textContent} is loaded.`);
    form.submit();
  };
  input.addEventListener("change", () => { accept(input.files[0]); input.value = ""; });
  for (const name of ["dragover", "drop", "dragleave"]) box.addEventListener(name, event => {
    event.preventDefault();
    box.classList.toggle("dragover", name === "dragover");
    if (name === "drop") accept([...event.dataTransfer.files][0]);
  });
  document.addEventListener("paste", event => {
    const file = [...event.clipboardData?.files ?? []].find(candidate => candidate.type.startsWith("image/"));
    if (file) { event.preventDefault(); accept(file); }
  }, { signal: closed });
  // a file dropped beside the zone must not replace the page
  for (const name of ["dragover", "drop"]) addEventListener(name, event => event.preventDefault(), { signal: closed });
  form.fields.append(box);
  const opened = last ?? (examples.images.length ? { url: pngUrl(examples.images[0]), name: "an example" } : null);
  if (opened) { image = opened.url; show(opened.name); }
  return {
    box,
    ready: Boolean(opened),
    read() {
      if (!image) throw new ApiError("There is no image yet: drop one into the field above, or choose a file.");
      return image;
    },
  };
}
