// A picture as large as its frame allows; a small one by whole multiples of its pixels, so it stays crisp.

const SMALL = 200;

export function fit(picture, frame) {
  const { naturalWidth: width, naturalHeight: height } = picture;
  if (!width || !height) return;
  const room = Math.min(frame.clientWidth / width, frame.clientHeight / height);
  const small = Math.max(width, height) < SMALL;
  const ratio = devicePixelRatio || 1;
  const scale = small ? Math.max(1, Math.floor(room * ratio)) / ratio : room;
  picture.classList.toggle("pixels", small);
  picture.width = Math.round(width * scale);
  picture.height = Math.round(height * scale);
}

/** Resolves to whether the picture can be seen. */
export async function loaded(picture) {
  if (!picture) return false;
  try {
    await picture.decode();
    return true;
  } catch {
    return false;
  }
}
