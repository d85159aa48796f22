// A button that shows a request as text, to copy it.

import { useEffect, useState } from 'preact/hooks';
import type { Described, Language } from './copyas';
import { Dialog, useApp, useLoaded } from './widgets';

const languages: Language[] = ['kubectl', 'curl', 'Go', 'TypeScript'];
const kept = 'annex.copyAs';

// CopyAs may be within a form and within a dialog. note is what the request leaves out.
export function CopyAs({ describe, note }: { describe: () => Described; note?: string | undefined }) {
  const [shown, show] = useState<Described>();
  return (
    <>
      <button type="button" title="This request as kubectl, curl, Go or TypeScript" onClick={() => show(describe())}>
        Copy as …
      </button>
      {shown && (
        <span onKeyDown={(e) => e.stopPropagation()}>
          <Texts described={shown} note={note} close={() => show(undefined)} />
        </span>
      )}
    </>
  );
}

function Texts({ described, note, close }: { described: Described; note: string | undefined; close: () => void }) {
  const { say } = useApp();
  const [language, choose] = useState<Language>(() => languages.find((l) => l === localStorage.getItem(kept)) ?? 'kubectl');
  const loaded = useLoaded(() => import('./copyas'), []);
  useEffect(() => localStorage.setItem(kept, language), [language]);
  const text = loaded.value?.textOf(described, language, location.origin) ?? '';
  return (
    <Dialog title="Copy as" close={close}>
      {note && <p class="quiet">{note}</p>}
      <div class="tools" role="radiogroup" aria-label="Language" onKeyDown={(e) => e.key === 'Enter' && e.preventDefault()}>
        {languages.map((l) => (
          <label class="check">
            <input type="radio" name="language" checked={l === language} onChange={() => choose(l)} /> {l}
          </label>
        ))}
      </div>
      <pre class="source copied" tabIndex={0} aria-label={language}>
        {text}
      </pre>
      <div class="tools">
        <button
          type="button"
          class="primary"
          onClick={() =>
            void navigator.clipboard.writeText(text).then(
              () => (say(`Copied as ${language}.`), close()),
              () => say('The browser does not let the page copy: select the text.'),
            )
          }
        >
          Copy
        </button>
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
