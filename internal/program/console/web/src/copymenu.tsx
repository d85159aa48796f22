// A button that shows a request as text, to copy it.

import { useEffect, useState } from 'preact/hooks';
import type { Described, Language } from './copyas';
import { Dialog, useApp, useLoaded } from './widgets';

const languages: Language[] = ['kubectl', 'curl', 'Go', 'TypeScript'];
const kept = 'annex.copyAs';

export function CopyAs({ describe }: { describe: () => Described }) {
  const [shown, show] = useState<Described>();
  return (
    <>
      <button type="button" title="This request as kubectl, curl, Go or TypeScript" onClick={() => show(describe())}>
        Copy as …
      </button>
      {shown && <Texts described={shown} close={() => show(undefined)} />}
    </>
  );
}

function Texts({ described, close }: { described: Described; close: () => void }) {
  const { say } = useApp();
  const [language, choose] = useState<Language>(() => languages.find((l) => l === localStorage.getItem(kept)) ?? 'kubectl');
  const loaded = useLoaded(() => import('./copyas'), []);
  useEffect(() => localStorage.setItem(kept, language), [language]);
  const text = loaded.value?.textOf(described, language, location.origin) ?? '';
  return (
    <Dialog title="Copy as" close={close}>
      <div class="tools" role="radiogroup" aria-label="Language">
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
