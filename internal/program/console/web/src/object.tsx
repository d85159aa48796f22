// One object: its fields and their edit; events, owners, logs, a terminal, actions.

import { type ComponentChildren } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { Action } from './action';
import { events as watch, get, type Obj, pause, reasonOf, Refused, request, type Resource, untilOnline } from './api';
import type { Described } from './copyas';
import { CopyAs } from './copymenu';
import { actions, apiVersion, execOf, type Kind, logsOf, pathOf, readable } from './discovery';
import { textOf } from './document';
import { draftAt, draftKey, dropDraft, hasDraft, keepDraft } from './drafts';
import { Edit, isSecretKind } from './edit';
import { Events } from './events';
import { Graph } from './graph';
import { describe as describeHistory, History, useHistory } from './history';
import { Logs } from './logs';
import { wanted } from './rights';
import { go, linkToKind, linkToNew, linkToObject } from './router';
import { covered, SecretValues } from './secret';
import { Terminal } from './terminal';
import { age } from './table';
import { isObj, lastApplied } from './values';
import { Dialog, Field, Loading, Problem, useApp, useLoaded, useMay, useNow, useTask } from './widgets';
import './object.css';

// useObject reads an object and follows it.
function useObject(kind: Kind, namespace: string, name: string): { object?: Resource; gone: boolean; error?: unknown; put: (o: Resource) => void } {
  const [object, put] = useState<Resource | undefined>();
  const [gone, setGone] = useState(false);
  const [error, setError] = useState<unknown>();
  const [round, setRound] = useState(0);
  useTask(
    async (signal) => {
      let seen = false;
      while (!signal.aborted) {
        try {
          const first = await get<Resource>(pathOf(kind, namespace, name), { signal });
          seen = true;
          put(first);
          setGone(false);
          setError(undefined);
          if (!kind.verbs.includes('watch')) return;
          const path = pathOf(kind, namespace, undefined, undefined, { watch: 'true', allowWatchBookmarks: 'true', fieldSelector: 'metadata.name=' + name, resourceVersion: first.metadata.resourceVersion });
          for await (const e of watch<Resource>(path, 'application/json', signal)) {
            if (e.type === 'ERROR') break;
            if (e.type === 'DELETED') return setGone(true);
            if (e.type !== 'BOOKMARK') put(e.object);
          }
        } catch (failure) {
          if (signal.aborted) return;
          const code = failure instanceof Refused ? failure.code : 0;
          if (code === 404 && seen) return setGone(true);
          // The next request finds out whether the session gives another token.
          if (code === 401 && (failure as Refused).midway) continue;
          // Who may get and not watch sees the object as it is now and then.
          const refused = [400, 403, 404, 405, 406].includes(code);
          if (!refused || !seen) setError(failure);
          if (code === 401) return;
          if (refused) await pause(10_000, signal);
        }
        await untilOnline(1000, signal);
      }
    },
    [kind, namespace, name, round],
  );
  const written = (o: Resource) => {
    put(o);
    // An object that was restored is followed again.
    if (gone || error) setRound((n) => n + 1);
  };
  return { ...(object ? { object } : {}), gone, error, put: written };
}

export function ObjectView({ kind, namespace, name, tab }: { kind: Kind; namespace: string; name: string; tab: string }) {
  const { kinds, session } = useApp();
  const { object, gone, error, put } = useObject(kind, namespace, name);
  const of = (verb: string, sub?: string) => wanted(kind, verb, namespace, name, sub);
  const logs = logsOf(kind);
  const exec = execOf(kind);
  const mayLog = useMay(logs && of('get', logs.name));
  const mayExec = useMay(exec && of('create', 'exec'));
  const eventKind = kinds.find((k) => k.group === '' && k.resource === 'events');
  const mayEvents = useMay(eventKind && wanted(eventKind, 'list', namespace || 'default'));
  const history = useHistory(kind, namespace, name);
  const mayEdit = useMay(kind.verbs.includes('patch') ? of('patch') : undefined);
  const mayDelete = useMay(kind.verbs.includes('delete') ? of('delete') : undefined);
  const now = useNow(5000);
  const [deleting, setDeleting] = useState(false);
  const [acting, act] = useState<string>();
  if (error && !object) {
    const missing = error instanceof Refused && error.code === 404;
    return (
      <>
        <Problem error={error} title={`${kind.kind} ${name}`} />
        {missing && <Kept kind={kind} namespace={namespace} name={name} />}
        {missing && history && (
          <>
            <div class="heading">
              <h2>History</h2>
              <span class="gap" />
              <CopyAs describe={() => describeHistory(kind, namespace, name, 'history', [], [])} />
            </div>
            <History kind={kind} namespace={namespace} name={name} put={put} />
          </>
        )}
      </>
    );
  }
  if (!object) return <Loading what={name} />;
  const m = object.metadata;
  const drafted = hasDraft(draftKey(session.user.username, kind, namespace, name));
  const tabs: [string, string, boolean][] = [
    ['', 'Object', true],
    ['edit', drafted ? 'Edit (draft)' : 'Edit', mayEdit && !gone],
    ['logs', 'Logs', mayLog && !gone],
    ['exec', 'Terminal', mayExec && !gone],
    ['events', 'Events', mayEvents],
    ['owners', 'Owners', true],
    ['history', 'History', history],
    ...readable(kind).map((s): [string, string, boolean] => ['read-' + s.name, s.name, !gone]),
  ];
  const current = tabs.find(([id, , there]) => id === tab && there)?.[0] ?? '';
  const describe = (part: string): Described => {
    if (part === 'logs' && logs) return { method: 'GET', path: pathOf(kind, namespace, name, logs.name), query: [['tailLines', '500']] };
    if (part === 'events' && eventKind) {
      const inNamespace = namespace || 'default';
      return { method: 'GET', path: pathOf(eventKind, inNamespace), query: [['fieldSelector', `involvedObject.uid=${m.uid}`]], of: { kind: eventKind, namespace: inNamespace, verb: 'list' } };
    }
    if (part === 'history') return describeHistory(kind, namespace, name, 'history', [], []);
    if (part.startsWith('read-')) return { method: 'GET', path: pathOf(kind, namespace, name, part.slice(5)) };
    return { method: 'GET', path: pathOf(kind, namespace, name), of: { kind, namespace, name, verb: 'get' } };
  };
  return (
    <>
      <nav class="crumbs" aria-label="Where">
        <a href={linkToKind(kind, namespace)}>{kind.kind}</a> {namespace && <span>/ {namespace} </span>}/
      </nav>
      <div class="heading">
        <h1>{name}</h1>
        <span class="quiet">{apiVersion(kind)}</span>
        {gone && <span class="tone bad">deleted</span>}
        {!gone && m.deletionTimestamp && <span class="tone open">terminating</span>}
        <span class="gap" />
        {current !== 'exec' && <CopyAs describe={() => describe(current)} />}
        {!gone && actions(kind).map((s) => <ActionButton key={s.name} kind={kind} namespace={namespace} name={name} sub={s.name} act={act} />)}
        {mayDelete && !gone && (
          <button type="button" class="danger" onClick={() => setDeleting(true)}>
            Delete
          </button>
        )}
      </div>
      <dl class="facts">
        <Fact name="Created">
          {age(m.creationTimestamp, now)} ago <span class="quiet">{m.creationTimestamp}</span>
        </Fact>
        <Fact name="Revision">{m.resourceVersion}</Fact>
        {m.generation !== undefined && <Fact name="Generation">{m.generation}</Fact>}
        {m.labels && (
          <Fact name="Labels">
            {Object.entries(m.labels).map(([k, v]) => (
              <code class="label">
                {k}={v}
              </code>
            ))}
          </Fact>
        )}
      </dl>
      <Progress object={object} />
      {gone && <Kept kind={kind} namespace={namespace} name={name} />}
      <nav class="tabs" aria-label="Parts">
        {tabs
          .filter(([, , there]) => there)
          .map(([id, label]) => (
            <a key={id} href={linkToObject(kind, namespace, name, id)} aria-current={current === id ? 'page' : undefined}>
              {label}
            </a>
          ))}
      </nav>
      {current === '' && <Shown kind={kind} object={object} />}
      {current === 'edit' && <Edit kind={kind} namespace={namespace} name={name} object={object} put={put} />}
      {current === 'events' && eventKind && <Events kind={eventKind} object={object} namespace={namespace} />}
      {current === 'history' && <History kind={kind} namespace={namespace} name={name} put={put} {...(gone ? {} : { object })} />}
      {current === 'owners' && <Graph kind={kind} object={object} namespace={namespace} />}
      {current === 'logs' && logs && <Logs kind={kind} namespace={namespace} name={name} sub={logs.name} object={object} />}
      {current === 'exec' && <Terminal kind={kind} namespace={namespace} name={name} object={object} />}
      {current.startsWith('read-') && <Read kind={kind} namespace={namespace} name={name} sub={current.slice(5)} />}
      {deleting && <Delete kind={kind} namespace={namespace} object={object} close={() => setDeleting(false)} />}
      {acting && <Action kind={kind} namespace={namespace} name={name} sub={acting} close={() => act(undefined)} />}
    </>
  );
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function ActionButton({ kind, namespace, name, sub, act }: { kind: Kind; namespace: string; name: string; sub: string; act: (sub: string) => void }) {
  return useMay(wanted(kind, 'create', namespace, name, sub)) ? (
    <button type="button" onClick={() => act(sub)}>
      {sub}
    </button>
  ) : null;
}

// Progress shows how far an operation is, and conditions of all that have them.
function Progress({ object }: { object: Resource }) {
  const status = isObj(object['status']) ? object['status'] : {};
  const progress = status['progress'] ?? status['percent'];
  const percent = typeof progress === 'number' ? progress : isObj(progress) && typeof progress['percent'] === 'number' ? progress['percent'] : undefined;
  const step = isObj(progress) ? progress['message'] : status['message'];
  const conditions = Array.isArray(status['conditions']) ? status['conditions'].filter(isObj) : [];
  if (percent === undefined && conditions.length === 0) return null;
  return (
    <div class="progress" aria-live="polite">
      {percent !== undefined && (
        <label>
          {typeof step === 'string' && step ? step : 'Progress'} <progress max={100} value={percent} /> {percent} %
        </label>
      )}
      {conditions.length > 0 && (
        <ul class="conditions" aria-label="Conditions">
          {conditions.map((c) => (
            <li title={`${String(c['reason'] ?? '')} ${String(c['message'] ?? '')}`}>
              <span class={`tone ${c['status'] === 'True' ? 'good' : c['status'] === 'False' ? 'bad' : 'open'}`}>{String(c['type'])}</span> <span class="quiet">{String(c['status'])}{c['reason'] ? ', ' + String(c['reason']) : ''}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function Shown({ kind, object }: { kind: Kind; object: Resource }) {
  const [all, setAll] = useState(false);
  const text = useMemo(() => {
    const shown = (isSecretKind(kind) ? covered(object as unknown as Obj) : object) as Resource;
    if (all) return textOf(shown);
    const { managedFields: _, annotations, ...metadata } = shown.metadata;
    const { [lastApplied]: __, ...rest } = annotations ?? {};
    return textOf({ ...shown, metadata: { ...metadata, ...(Object.keys(rest).length > 0 ? { annotations: rest } : {}) } });
  }, [kind, object, all]);
  return (
    <>
      {isSecretKind(kind) && <SecretValues object={object as unknown as Obj} />}
      <div class="tools">
        <label class="check">
          <input type="checkbox" checked={all} onChange={(e) => setAll(e.currentTarget.checked)} /> with managed fields{object.metadata.annotations?.[lastApplied] !== undefined && ' and what kubectl applied last'}
        </label>
      </div>
      <pre class="source" tabIndex={0} aria-label="The object as YAML">
        {text}
      </pre>
    </>
  );
}

// Kept is a draft of an object that is there no more.
function Kept({ kind, namespace, name }: { kind: Kind; namespace: string; name: string }) {
  const { session } = useApp();
  const key = draftKey(session.user.username, kind, namespace, name);
  const [draft, setDraft] = useState(() => draftAt(key));
  if (!draft) return null;
  return (
    <div class="note" role="status">
      You have a draft of it.{' '}
      <button
        type="button"
        onClick={() => {
          keepDraft(draftKey(session.user.username, kind, namespace, ''), draft, isSecretKind(kind));
          dropDraft(key);
          go(linkToNew(kind, namespace));
        }}
      >
        Create it anew
      </button>{' '}
      <button
        type="button"
        onClick={() => {
          dropDraft(key);
          setDraft(undefined);
        }}
      >
        Discard
      </button>
    </div>
  );
}

function Read({ kind, namespace, name, sub }: { kind: Kind; namespace: string; name: string; sub: string }) {
  const read = useLoaded((signal) => request(pathOf(kind, namespace, name, sub), { signal }).then((r) => r.text()), [kind, namespace, name, sub]);
  const text = (() => {
    try {
      return textOf(JSON.parse(read.value ?? ''));
    } catch {
      return read.value ?? '';
    }
  })();
  return (
    <>
      <div class="tools">
        <button type="button" onClick={read.reload}>
          Read again
        </button>
      </div>
      <Problem error={read.error} />
      {read.value !== undefined && (
        <pre class="source" tabIndex={0}>
          {text}
        </pre>
      )}
    </>
  );
}

function Delete({ kind, namespace, object, close }: { kind: Kind; namespace: string; object: Resource; close: () => void }) {
  const { say } = useApp();
  const [policy, setPolicy] = useState('');
  const [error, setError] = useState('');
  const [busy, setBusy] = useState(false);
  const name = object.metadata.name;
  const remove = async () => {
    setBusy(true);
    try {
      await request(pathOf(kind, namespace, name), {
        method: 'DELETE',
        body: { apiVersion: 'v1', kind: 'DeleteOptions', ...(policy ? { propagationPolicy: policy } : {}), preconditions: { uid: object.metadata.uid } },
      });
      say(`${kind.kind} ${name} is being deleted.`);
      close();
      go(linkToKind(kind, namespace));
    } catch (failure) {
      setError(reasonOf(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Delete ${kind.kind} ${name}?`} close={close}>
      {error && <Problem error={new Error(error)} title="Not deleted" />}
      <Field label="What it owns">
        {(id) => (
          <select id={id} value={policy} onChange={(e) => setPolicy(e.currentTarget.value)}>
            <option value="">as the kind has it</option>
            <option value="Background">is deleted after it</option>
            <option value="Foreground">is deleted before it</option>
            <option value="Orphan">stays, without an owner</option>
          </select>
        )}
      </Field>
      <div class="buttons">
        <CopyAs describe={() => ({ method: 'DELETE', path: pathOf(kind, namespace, name), query: policy ? [['propagationPolicy', policy]] : [], of: { kind, namespace, name, verb: 'delete' } })} />
        <button type="button" onClick={close} autofocus>
          Cancel
        </button>
        <button type="button" class="danger" disabled={busy} onClick={() => void remove()}>
          Delete
        </button>
      </div>
    </Dialog>
  );
}

