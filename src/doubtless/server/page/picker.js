// Drop, paste or choose: what arrives becomes the component's value, a data address. Runs as Gradio's js_on_load.
const LONGEST = 1024; // pixels; larger pictures are scaled down here, before they travel

const read = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(blob);
});

const shrunk = async (file) => {
  const picture = await createImageBitmap(file);
  const scale = LONGEST / Math.max(picture.width, picture.height);
  if (scale >= 1) return read(file); // as it is, byte for byte
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff"; // transparency becomes white, as on the server
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.95);
};

const take = async (file) => {
  if (!file) return;
  let address;
  try { address = await shrunk(file); } catch { address = await read(file); } // the server will say what is wrong
  props.value = address;
  trigger("chosen");
};

element.addEventListener("change", (event) => {
  if (event.target.type !== "file") return;
  event.stopPropagation();
  take(event.target.files[0]);
  event.target.value = ""; // the same file can be chosen again
});
element.addEventListener("click", (event) => {
  const example = event.target.closest("button[data-example]");
  if (!example) return;
  props.value = example.querySelector("img").src;
  trigger("chosen");
});
const mark = (on) => element.querySelector(".drop")?.classList.toggle("over", on);
for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, (event) => {
  if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
  event.preventDefault();
  mark(true);
});
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(false); });
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer?.files.length) return;
  event.preventDefault();
  mark(false);
  take(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
  if (!file) return;
  event.preventDefault();
  take(file);
});
