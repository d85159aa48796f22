// The requests of the server as they end: who asked what, how long it took, and what was refused and why.

import { useRef, useState } from 'preact/hooks';
import { lines, pause, query, Refused, request } from './api';
import { CopyAs } from './copymenu';
import { resourceOf } from './discovery';
import { linkToObject, link, usePlace } from './router';
import { Problem, useApp, useTask } from './widgets';
import './requests.css';

interface Entry {
  time: string;
  milliseconds: number;
  user?: string;
  as?: string;
  remote?: string;
  verb: string;
  group?: string;
  version?: string;
  resource?: string;
  subresource?: string;
  namespace?: string;
  name?: string;
  uri: string;
  code: number;
  reason?: string;
  causes?: string[];
  bytes: number;
  long?: boolean;
  key: number;
}
interface Gap {
  lost: number;
  key: number;
}

const most = 500; // rows of the page

// messages yields the events of a stream of server-sent events; it yields '' for a comment, by which a quiet server shows
// that it is there.
async function* messages(response: Response): AsyncGenerator<[string, string]> {
  let kind = '';
  for await (const line of lines(response)) {
    if (line.startsWith('event: ')) kind = line.slice(7);
    else if (line.startsWith('data: ')) yield [kind, line.slice(6)];
    else if (line.startsWith(':')) yield ['', ''];
  }
}

function took(milliseconds: number): string {
  if (milliseconds < 1) return `${(milliseconds * 1000).toFixed(0)} µs`;
  if (milliseconds < 1000) return `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
  return milliseconds < 120_000 ? `${(milliseconds / 1000).toFixed(1)} s` : `${Math.round(milliseconds / 60_000)} min`;
}

export function Requests() {
  const { config, kinds } = useApp();
  const { parameters } = usePlace();
  const chosen = { user: parameters.get('user') ?? '', resource: parameters.get('resource') ?? '', refused: parameters.get('refused') ?? '' };
  const choose = (change: Partial<typeof chosen>) => {
    // One page is one entry of the history, however often its filter changes.
    history.replaceState(null, '', link(['requests'], { ...chosen, ...change }));
    dispatchEvent(new HashChangeEvent('hashchange'));
  };
  const [rows, setRows] = useState<(Entry | Gap)[]>([]);
  const [state, setState] = useState<'loading' | 'live' | 'broken' | 'denied'>('loading');
  const [error, setError] = useState<unknown>();
  const [paused, setPaused] = useState(false);
  const [waiting, setWaiting] = useState(0);
  const still = useRef(false);
  still.current = paused;
  const kept = useRef<(Entry | Gap)[]>([]);
  const filter = JSON.stringify(chosen);

  useTask(
    async (signal) => {
      let wait = 500;
      let key = 0;
      while (!signal.aborted) {
        try {
          const response = await request(config.requests + query(chosen), { accept: 'text/event-stream', signal });
          // The stream begins with what the server has kept, so the page begins anew.
          const next: (Entry | Gap)[] = [];
          kept.current = next;
          let frame = 0;
          let unseen = 0;
          const draw = () => {
            frame ||= requestAnimationFrame(() => {
              frame = 0;
              if (signal.aborted) return;
              if (still.current) return setWaiting(unseen);
              unseen = 0;
              setWaiting(0);
              setRows(next.slice(-most).reverse());
            });
          };
          setState('live');
          setError(undefined);
          wait = 500;
          draw();
          for await (const [kind, data] of messages(response)) {
            if (kind !== 'REQUEST' && kind !== 'GAP') continue;
            next.push({ ...(JSON.parse(data) as Entry), key: ++key });
            if (next.length > 2 * most) next.splice(0, most);
            unseen++;
            draw();
          }
        } catch (failure) {
          if (signal.aborted) return;
          setError(failure);
          if (failure instanceof Refused && failure.code < 500 && failure.code !== 429) return setState('denied');
          setState('broken');
          wait = Math.min(wait * 2, 15_000);
        }
        await pause(wait, signal);
      }
    },
    [filter, config.requests],
  );

  const resources = [...new Set(kinds.map(resourceOf))].sort();
  return (
    <>
      <div class="heading">
        <h1>Requests</h1>
        <span class={`live ${paused ? 'loading' : state}`}>{paused ? 'paused' : state === 'live' ? 'live' : state === 'loading' ? 'loading' : state === 'denied' ? 'refused' : 'reconnecting'}</span>
        <span class="gap" />
        <CopyAs describe={() => ({ method: 'GET', path: config.requests ?? '', query: Object.entries(chosen).filter(([, v]) => v) })} />
        <button
          type="button"
          aria-pressed={paused}
          onClick={() => {
            if (paused) {
              setWaiting(0);
              setRows(kept.current.slice(-most).reverse());
            }
            setPaused(!paused);
          }}
        >
          {paused ? `Go on${waiting ? ` (${waiting} new)` : ''}` : 'Pause'}
        </button>
      </div>
      <Problem error={error} title={state === 'denied' ? 'You may not see the requests of this server' : 'Out of date, and trying again'} />
      {state !== 'denied' && (
        <>
          <div class="tools">
            <label>
              User <input type="search" value={chosen.user} placeholder="all" onChange={(e) => choose({ user: e.currentTarget.value.trim() })} />
            </label>
            <label>
              Kind{' '}
              <input type="search" list="requested" value={chosen.resource} placeholder="all" onChange={(e) => choose({ resource: e.currentTarget.value.trim() })} />
            </label>
            <datalist id="requested">
              {resources.map((r) => (
                <option value={r} />
              ))}
            </datalist>
            <label class="check">
              <input type="checkbox" checked={chosen.refused === 'true'} onChange={(e) => choose({ refused: e.currentTarget.checked ? 'true' : '' })} /> refused only
            </label>
            <span class="gap" />
            <span class="quiet">watches and other streams are listed when they end</span>
          </div>
          <div class="scroll" tabIndex={0} role="region" aria-label="Requests">
            <table class="requests">
              <thead>
                <tr>
                  {['Time', 'User', 'Verb', 'What', 'Took', 'Answer'].map((h) => (
                    <th scope="col">{h}</th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {rows.map((r) =>
                  'lost' in r ? (
                    <tr key={r.key}>
                      <td colSpan={6} class="quiet">
                        {r.lost.toLocaleString('en')} requests came faster than this page could read them, and are not shown
                      </td>
                    </tr>
                  ) : (
                    <Row key={r.key} entry={r} />
                  ),
                )}
              </tbody>
            </table>
            {rows.length === 0 && <p class="empty">{state === 'live' ? 'No request fits the filter.' : 'Reading …'}</p>}
          </div>
        </>
      )}
    </>
  );
}

function Row({ entry: e }: { entry: Entry }) {
  const { kinds } = useApp();
  const kind = e.resource && e.name ? kinds.find((k) => k.group === (e.group ?? '') && k.resource === e.resource) : undefined;
  const what = e.resource
    ? `${e.resource}${e.group ? '.' + e.group : ''}${e.subresource ? '/' + e.subresource : ''} ${[e.namespace, e.name].filter(Boolean).join('/')}`
    : e.uri;
  const refused = e.code >= 400;
  return (
    <tr title={`${e.uri}\n${e.bytes.toLocaleString('en')} bytes${e.remote ? ` to ${e.remote}` : ''}`}>
      <td class="time">{new Date(e.time).toLocaleTimeString('en-GB')}</td>
      <td class="who">
        {e.user || '–'}
        {e.as && <span class="quiet"> as {e.as}</span>}
      </td>
      <td>{e.verb}</td>
      <td class="what">{kind ? <a href={linkToObject(kind, e.namespace, e.name!)}>{what}</a> : what}</td>
      <td class="number">{took(e.milliseconds)}</td>
      <td class="answer">
        <span class={`tone ${refused ? 'bad' : 'good'}`}>{e.code}</span> {refused && e.reason}
        {e.causes?.map((c) => (
          <code class="label">{c}</code>
        ))}
      </td>
    </tr>
  );
}
