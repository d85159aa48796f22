// The log of an object, as it grows.

import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { lines, request, type Resource } from './api';
import { type Kind, pathOf } from './discovery';
import { isObj } from './values';
import { Problem, useTask } from './widgets';

const most = 5000;
// A line without an end must not fill the memory of the page.
const longest = 16_384;

// containersOf are the names that an object gives its containers.
export function containersOf(object: Resource): string[] {
  const spec = isObj(object['spec']) ? object['spec'] : {};
  return ['containers', 'initContainers', 'ephemeralContainers'].flatMap((list) => (Array.isArray(spec[list]) ? spec[list].filter(isObj).map((c) => String(c['name'])) : []));
}

export function Logs({ kind, namespace, name, sub, object }: { kind: Kind; namespace: string; name: string; sub: string; object: Resource }) {
  const [container, setContainer] = useState('');
  const [chosen, choose] = useState('');
  const [follow, setFollow] = useState(true);
  const [tail, setTail] = useState(500);
  const [text, setText] = useState<string[]>([]);
  const [state, setState] = useState('');
  const [error, setError] = useState<unknown>();
  const [words, setWords] = useState('');
  const [round, setRound] = useState(0);
  const view = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  const [wrap, setWrap] = useState(true);
  const id = useId();
  useTask(
    async (signal) => {
      setText([]);
      setError(undefined);
      setState('reading');
      const got: string[] = [];
      let frame = 0;
      const draw = () => {
        frame ||= requestAnimationFrame(() => {
          frame = 0;
          setText(got.slice());
        });
      };
      try {
        const response = await request(pathOf(kind, namespace, name, sub, { follow: follow ? 'true' : undefined, tailLines: tail, container: chosen }), { accept: '*/*', signal });
        for await (const line of lines(response, longest)) {
          got.push(line);
          if (got.length > most) got.splice(0, got.length - most);
          draw();
        }
        setState('ended');
      } catch (failure) {
        if (!signal.aborted) {
          setError(failure);
          setState('');
        }
      }
    },
    [kind, namespace, name, sub, chosen, follow, tail, round],
  );
  useEffect(() => {
    const el = view.current;
    if (el && atEnd.current) el.scrollTop = el.scrollHeight;
  }, [text]);
  const shown = words ? text.filter((l) => l.toLowerCase().includes(words.toLowerCase())) : text;
  return (
    <>
      <form
        class="tools"
        onSubmit={(e) => {
          e.preventDefault();
          choose(container.trim());
          setRound((r) => r + 1);
        }}
      >
        <label>
          Container <input value={container} size={10} list={id} onInput={(e) => setContainer(e.currentTarget.value)} />
          <datalist id={id}>
            {containersOf(object).map((c) => (
              <option key={c} value={c} />
            ))}
          </datalist>
        </label>
        <label>
          Last{' '}
          <select value={String(tail)} onChange={(e) => setTail(Number(e.currentTarget.value))}>
            {[100, 500, 5000].map((n) => (
              <option value={String(n)}>{n}</option>
            ))}
          </select>{' '}
          lines
        </label>
        <label class="check">
          <input type="checkbox" checked={follow} onChange={(e) => setFollow(e.currentTarget.checked)} /> follow
        </label>
        <label class="check">
          <input type="checkbox" checked={wrap} onChange={(e) => setWrap(e.currentTarget.checked)} /> wrap
        </label>
        <button type="submit">Read again</button>
        <button type="button" disabled={shown.length === 0} onClick={() => download(`${name}.log`, shown.join('\n') + '\n')}>
          Download
        </button>
        <input type="search" aria-label="Filter the log" placeholder="Filter" value={words} onInput={(e) => setWords(e.currentTarget.value)} />
        <span class="gap" />
        <span class="quiet" role="status">
          {state === 'reading' && follow ? 'following' : state} · {shown.length} lines
        </span>
      </form>
      <Problem error={error} title="No log" />
      <pre
        ref={view}
        class={wrap ? 'source log' : 'source log unwrapped'}
        tabIndex={0}
        role="log"
        aria-label="Log"
        onScroll={(e) => {
          const el = e.currentTarget;
          atEnd.current = el.scrollHeight - el.scrollTop - el.clientHeight < 20;
        }}
      >
        {shown.join('\n')}
      </pre>
    </>
  );
}

function download(name: string, text: string): void {
  const a = document.createElement('a');
  a.href = URL.createObjectURL(new Blob([text], { type: 'text/plain' }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
}
