// The terminal's library writes elements <style> and attributes style, which the page's policy refuses
// to apply. What it writes so becomes sheets made by script, which are allowed, as they are no way in
// for markup.

let done = false;

export function adoptStyles(): void {
  if (done) return;
  done = true;
  const create = document.createElement.bind(document);
  const made = (name: string, options?: ElementCreationOptions): HTMLElement => {
    if (name.toLowerCase() === 'style') return sheetElement(create('span'));
    const element = create(name, options);
    if (name.toLowerCase() !== 'span' && name.toLowerCase() !== 'div') return element;
    const set = element.setAttribute.bind(element);
    element.setAttribute = (attribute: string, value: string) => {
      if (attribute === 'style') element.style.cssText = value;
      else set(attribute, value);
    };
    return element;
  };
  document.createElement = made as typeof document.createElement;
}

// sheetElement stands where a style would, and its text is that of a sheet of the document.
function sheetElement(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  element.hidden = true;
  Object.defineProperty(element, 'textContent', {
    get: () => '',
    set: (text: string) => {
      sheet.replaceSync(text);
      if (!document.adoptedStyleSheets.includes(sheet)) document.adoptedStyleSheets.push(sheet);
    },
  });
  const remove = element.remove.bind(element);
  element.remove = () => {
    remove();
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
  };
  return element;
}
