// The edit of an object: a draft that outlives the page, compared and tried before it is saved.

import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { get, type Obj, Refused, type Resource } from './api';
import { byHand, describedWrite, managerOf, manages, nameOf, preview, type Preview, send } from './apply';
import type { Described } from './copyas';
import { CopyAs } from './copymenu';
import { changes, type Choices, type Clash, merge, written } from './diff';
import { Clashes, type Difference, Differences } from './differences';
import { type Kind, pathOf } from './discovery';
import { type Doc, docOf, filled, settled } from './document';
import { draftAt, draftKey, dropDraft, keepDraft } from './drafts';
import { type Change, Editor, type Mode } from './editor';
import { causesOf, editable, same } from './values';
import { Dialog, Problem, useApp } from './widgets';

export function isSecretKind(kind: Kind): boolean {
  return kind.group === '' && kind.resource === 'secrets';
}

interface State {
  doc: Doc;
  base: Obj; // what the edit began with, or was merged with last
  uid: string;
  since?: number; // when the draft was kept, if it is one
}

// What is to be looked at before the next step.
type Stage =
  | { what: 'clash'; latest: Resource; clashes: Clash[]; anew: boolean }
  | { what: 'diff'; latest: Resource; wanted: Obj; preview: Preview; all: Difference[]; notes: string[] };

function stateOf(object: Resource): State {
  const base = editable(object);
  return { doc: docOf(base), base, uid: object.metadata.uid ?? '' };
}

export function isDirty(doc: Doc, base: Obj): boolean {
  return doc.ahead === 'text' || !!doc.error || !same(base, doc.object);
}

// read is a document whose object is that of its text.
export function read(doc: Doc): Doc {
  return doc.ahead === 'text' ? settled(doc) : doc;
}

// useKept keeps a draft while it differs from what is stored.
export function useKept(key: string, secret: boolean, state: { doc: Doc; base?: Obj; uid?: string }, mode: Mode, dirty: boolean): { survives: boolean; forget: () => void } {
  const [survives, setSurvives] = useState(true);
  const now = useRef<{ state: typeof state; mode: Mode; dirty: boolean; written: unknown; writtenMode: Mode; over: boolean }>({ state, mode, dirty, written: undefined, writtenMode: mode, over: false });
  if (now.current.state !== state) now.current.over = false;
  now.current = { ...now.current, state, mode, dirty };
  const keep = useCallback(() => {
    const { state: s, mode: m, dirty: d, written: w, writtenMode, over } = now.current;
    if (over || (w === s && m === writtenMode && d)) return;
    now.current.written = s;
    now.current.writtenMode = m;
    if (!d) return dropDraft(key);
    const { doc, base, uid } = s;
    setSurvives(keepDraft(key, { text: doc.text, ...(doc.ahead === 'object' ? { object: doc.object } : {}), mode: m, time: Date.now(), ...(base ? { base } : {}), ...(uid ? { uid } : {}) }, secret));
  }, [key, secret]);
  useEffect(() => {
    const timer = setTimeout(keep, state.doc.text.length > 60_000 ? 800 : 100);
    return () => clearTimeout(timer);
  }, [state, mode, dirty]);
  useEffect(() => {
    addEventListener('pagehide', keep);
    return () => {
      removeEventListener('pagehide', keep);
      keep();
    };
  }, [keep]);
  return {
    survives,
    forget: () => {
      now.current.over = true;
      dropDraft(key);
    },
  };
}

export function Edit({ kind, namespace, name, object, put }: { kind: Kind; namespace: string; name: string; object: Resource; put: (o: Resource) => void }) {
  const { say, session } = useApp();
  const manager = useMemo(() => managerOf(session.user.username), [session]);
  const key = draftKey(session.user.username, kind, namespace, name);
  const secret = isSecretKind(kind);
  const [found] = useState(() => draftAt(key));
  const [state, setState] = useState<State>(() => {
    if (!found?.base) return stateOf(object);
    const doc: Doc = found.object ? { text: found.text, object: found.object, ahead: 'object' } : settled({ text: found.text, object: found.base, ahead: 'text' });
    return { doc, base: found.base, uid: found.uid ?? '', since: found.time };
  });
  const [mode, setMode] = useState<Mode>(found?.mode ?? 'form');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [stage, setStage] = useState<Stage>();
  const [merged, setMerged] = useState<string[]>([]);
  const { doc, base } = state;
  const dirty = isDirty(doc, base);
  const { survives, forget } = useKept(key, secret, state, mode, dirty);
  const now = useRef({ state, dirty });
  now.current = { state, dirty };
  // While nothing is edited, the editor shows what is there.
  useEffect(() => {
    if (now.current.dirty) return;
    const next = stateOf(object);
    setState((s) => (same(s.base, next.base) && s.uid === next.uid ? s : next));
  }, [object]);
  const meanwhile = useMemo(() => (dirty ? changes(base, editable(object)) : []), [dirty, base, object]);
  const change: Change = useCallback((update) => setState((s) => ({ ...s, doc: update(s.doc) })), []);
  const discard = () => {
    forget();
    setState(stateOf(object));
    setError(undefined);
    setMerged([]);
  };

  // review compares with what is stored now, and tries the result. What others have changed is merged; where they
  // changed the same field, the user chooses.
  const review = async (choices: Choices = new Map()) => {
    const mine = read(now.current.state.doc);
    change(() => mine);
    if (mine.error) return;
    setBusy(true);
    setError(undefined);
    try {
      for (let attempt = 0; ; attempt++) {
        const latest = await get<Resource>(pathOf(kind, namespace, name));
        const theirs = editable(latest);
        const started = now.current.state;
        const { value, clashes } = merge(started.base, theirs, mine.object, choices);
        const open = clashes.some((c) => !choices.has(c.id));
        // What is wrong with the user's values is said before they are compared with others'.
        const wanted = (open ? merge(started.base, theirs, mine.object, new Map(clashes.map((c) => [c.id, 'mine']))).value : value) as Obj;
        let tried: Preview;
        try {
          tried = await preview(kind, latest, wanted, manager);
        } catch (failure) {
          if (attempt < 5 && isOutrun(failure)) continue;
          throw failure;
        }
        const anew = !!started.uid && started.uid !== latest.metadata.uid;
        if (open) return setStage({ what: 'clash', latest, clashes, anew });
        const others = changes(started.base, theirs).map((c) => written(c.path));
        const notes = [...(anew ? ['It has been deleted and made anew since you began.'] : []), ...(others.length > 0 ? [`Meanwhile others have changed ${named(others)}.`] : [])];
        if (others.length > 0) setMerged(others);
        put(latest);
        setState({ doc: same(mine.object, wanted) ? mine : filled(mine, wanted), base: theirs, uid: latest.metadata.uid ?? '' });
        setStage({ what: 'diff', latest, wanted, preview: tried, all: compared(latest, wanted, tried), notes });
        return;
      }
    } catch (failure) {
      setStage(undefined);
      setError(failure);
    } finally {
      setBusy(false);
    }
  };

  // save writes what was shown, on condition that the object is still the one that was compared. Where others were
  // faster with other fields, it is tried again; where that changes what was shown, it is shown again.
  const save = async (shown: Stage & { what: 'diff' }) => {
    setBusy(true);
    setError(undefined);
    try {
      let { latest, wanted, preview: tried } = shown;
      for (let attempt = 0; ; attempt++) {
        try {
          const saved = await send(kind, latest, tried.write, manager, { dryRun: false, force: tried.force });
          forget();
          setStage(undefined);
          setMerged([]);
          setState(stateOf(saved));
          put(saved);
          say(`${kind.kind} ${name} was saved.`);
          return;
        } catch (failure) {
          if (attempt >= 9 || !isOutrun(failure)) throw failure;
        }
        const next = await get<Resource>(pathOf(kind, namespace, name));
        const { value, clashes } = merge(editable(latest), editable(next), wanted, new Map());
        if (clashes.length > 0 || next.metadata.uid !== latest.metadata.uid) return await review();
        const again = await preview(kind, next, value as Obj, manager).catch((failure: unknown) => {
          if (isOutrun(failure)) return undefined;
          throw failure;
        });
        if (!again) continue;
        const all = compared(next, value as Obj, again);
        const before = shown.all;
        latest = next;
        wanted = value as Obj;
        tried = again;
        if (same(all, before) && same(again.others, shown.preview.others)) continue;
        put(next);
        setState((s) => ({ ...s, doc: filled(s.doc, wanted), base: editable(next) }));
        return setStage({ what: 'diff', latest, wanted, preview: tried, all, notes: ['It was changed again just now: this is what your edit does to it.'] });
      }
    } catch (failure) {
      if (failure instanceof Refused && failure.code === 422) setStage(undefined);
      setError(failure);
    } finally {
      setBusy(false);
    }
  };

  const causes = useMemo(() => causesOf(error), [error]);
  return (
    <form
      novalidate
      onSubmit={(e) => {
        e.preventDefault();
        void review();
      }}
      onKeyDown={(e) => {
        if ((e.ctrlKey || e.metaKey) && e.key === 's') {
          e.preventDefault();
          if (dirty && !busy) void review();
        }
      }}
    >
      <div class="tools saving">
        <button type="submit" class="primary" disabled={busy || !dirty || !!doc.error}>
          Review and save
        </button>
        <button type="button" disabled={busy || !dirty} onClick={discard}>
          Discard
        </button>
        {dirty && (
          <span class="tone open" role="status">
            draft{state.since ? ` of ${new Date(state.since).toLocaleTimeString()}` : ''}, kept {survives ? 'in this tab' : 'until this page is loaded anew'}
          </span>
        )}
        {meanwhile.length > 0 && (
          <span class="quiet" role="status">
            Others have changed {named(meanwhile.map((c) => written(c.path)))} since.
          </span>
        )}
        {merged.length > 0 && meanwhile.length === 0 && dirty && <span class="quiet">What others have changed is merged: {named(merged)}.</span>}
      </div>
      {!stage && <NotSaved error={error} causes={causes.length} />}
      <Editor kind={kind} doc={doc} change={change} causes={causes} creating={false} mode={mode} setMode={setMode} submit={() => dirty && !busy && void review()} />
      {stage?.what === 'clash' && <ClashDialog stage={stage} secret={secret} busy={busy} go={(choices) => void review(choices)} close={() => setStage(undefined)} />}
      {stage?.what === 'diff' && (
        <DiffDialog
          stage={stage}
          secret={secret}
          busy={busy}
          error={error}
          describe={() => describedWrite(kind, stage.latest, stage.preview.write, manager, stage.preview.force)}
          save={() => void save(stage)}
          close={() => {
            setStage(undefined);
            setError(undefined);
          }}
        />
      )}
    </form>
  );
}

// isOutrun says whether another write came first.
function isOutrun(failure: unknown): boolean {
  return failure instanceof Refused && failure.code === 409 && !failure.isConflictOfManagers;
}

function named(paths: string[]): string {
  const shown = paths.slice(0, 3).join(', ');
  return paths.length > 3 ? `${shown} and ${paths.length - 3} more` : shown;
}

// compared is what an edit changes of the object as it is stored. What the user did not ask for, such as defaults,
// is the server's.
function compared(latest: Resource, wanted: Obj, tried: Preview): Difference[] {
  const asked = changes(editable(latest), wanted).map((c) => written(c.path));
  return changes(editable(latest), editable(tried.after)).map((c) => {
    const path = written(c.path);
    const mine = asked.some((a) => a === path || path.startsWith(a) || a.startsWith(path));
    return { path, from: c.from, to: c.to, ...(mine ? {} : { note: 'by the server' }) };
  });
}

export function NotSaved({ error, causes, title = 'Not saved' }: { error: unknown; causes: number; title?: string }) {
  if (!error) return null;
  if (error instanceof Refused && error.code === 404) return <Problem error={new Error('It has been deleted meanwhile. Your draft is kept.')} title={title} />;
  if (causes === 0) return <Problem error={error} title={title} />;
  // Each cause is at its field.
  return (
    <div class="problem" role="alert">
      <strong>{title}</strong>: {causes === 1 ? 'one value is not valid' : `${causes} values are not valid`}.
    </div>
  );
}

function ClashDialog({ stage, secret, busy, go, close }: { stage: Stage & { what: 'clash' }; secret: boolean; busy: boolean; go: (choices: Choices) => void; close: () => void }) {
  const [chosen, setChosen] = useState<Choices>(new Map());
  const left = stage.clashes.filter((c) => !chosen.has(c.id)).length;
  const by = (c: Clash) => [...new Set((stage.latest.metadata.managedFields ?? []).filter((m) => !m.subresource && manages(m, c.path)).map((m) => nameOf(m.manager)))];
  return (
    <Dialog title={stage.clashes.length === 1 ? 'Another has changed the same field' : `Another has changed the same ${stage.clashes.length} fields`} close={close} wide>
      {stage.anew && <p>It has been deleted and made anew since you began.</p>}
      <Clashes all={stage.clashes} by={by} chosen={chosen} choose={(id, side) => setChosen(new Map(chosen).set(id, side))} secret={secret} />
      <div class="buttons">
        {left > 0 && <span class="quiet">{left === 1 ? 'Choose one of the values.' : `${left} are to be chosen.`}</span>}
        <button type="button" onClick={close}>
          Back to the edit
        </button>
        <button type="button" class="primary" disabled={busy || left > 0} onClick={() => go(chosen)}>
          Continue
        </button>
      </div>
    </Dialog>
  );
}

function DiffDialog({ stage, secret, busy, error, describe, save, close }: {
  stage: Stage & { what: 'diff' };
  secret: boolean;
  busy: boolean;
  error: unknown;
  describe: () => Described;
  save: () => void;
  close: () => void;
}) {
  const { others, unseen } = stage.preview;
  const takeOver = others.filter((o) => !byHand(o.manager));
  const [taken, setTaken] = useState<ReadonlySet<string>>(new Set());
  return (
    <Dialog title="What will change" close={close} wide>
      <Problem error={error} title="Not saved" />
      {stage.notes.map((n) => (
        <p>{n}</p>
      ))}
      {unseen && <p>The server cannot try this edit, because a webhook has side effects. These are your changes alone.</p>}
      {stage.all.length === 0 ? <p>Nothing: the server stores this already.</p> : <Differences all={stage.all} secret={secret} />}
      {others
        .filter((o) => byHand(o.manager))
        .map((o) => (
          <p class="quiet" key={o.manager}>
            {named(o.fields)} was set with {nameOf(o.manager)} before.
          </p>
        ))}
      {takeOver.map((o) => (
        <label class="check take-over" key={o.manager}>
          <input
            type="checkbox"
            checked={taken.has(o.manager)}
            onChange={(e) => {
              const next = new Set(taken);
              if (e.currentTarget.checked) next.add(o.manager);
              else next.delete(o.manager);
              setTaken(next);
            }}
          />
          <span>
            Take over {named(o.fields)} from <strong>{nameOf(o.manager)}</strong>, which manages {o.fields.length === 1 ? 'it' : 'them'} and may change {o.fields.length === 1 ? 'it' : 'them'} back or fail when it applies next
          </span>
        </label>
      ))}
      <div class="buttons">
        {!secret && stage.all.length > 0 && <CopyAs describe={describe} />}
        <button type="button" onClick={close}>
          Back to the edit
        </button>
        <button type="button" class="primary" autofocus disabled={busy || stage.all.length === 0 || takeOver.some((o) => !taken.has(o.manager))} onClick={save}>
          Save
        </button>
      </div>
    </Dialog>
  );
}
