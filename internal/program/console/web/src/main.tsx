// The console: a page for any Annex server, by its API alone.

import { Component, type ComponentChildren, render } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { get, pause, reasonOf, type Resource, whenEnded } from './api';
import { discover, type Kind, pathOf } from './discovery';
import { Home, isOwn } from './home';
import { useKeys } from './keys';
import { ObjectView } from './object';
import { Requests } from './requests';
import { NewView } from './new';
import { type Entry, Help, Palette } from './palette';
import { listed } from './querying';
import { listable, may, mayGet, wanted } from './rights';
import { go, link, linkToKind, linkToObject, parse, type Place, usePlace } from './router';
import { again, byLink, comeBack, config, type Config, resume, type Session, signOut, takeLink } from './session';
import { SignIn } from './signin';
import { TableView } from './tableview';
import { type App as AppState, AppContext, Loading, Problem, useApp, useLoaded } from './widgets';
import '@xterm/xterm/css/xterm.css';
import './style.css';

type Theme = 'auto' | 'light' | 'dark';
const themes: Theme[] = ['auto', 'light', 'dark'];

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(() => themes.find((t) => t === localStorage.getItem('annex.theme')) ?? 'auto');
  useEffect(() => {
    document.documentElement.dataset['theme'] = theme;
    localStorage.setItem('annex.theme', theme);
  }, [theme]);
  return [theme, () => setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]!)];
}

function Root() {
  const [theme, nextTheme] = useTheme();
  const [session, setSession] = useState<Session | undefined>();
  const [failed, setFailed] = useState<unknown>();
  const [looked, setLooked] = useState(false);
  const loaded = useLoaded(async () => {
    const c = await config();
    document.title = c.title;
    const link = takeLink();
    try {
      setSession(await (link ? byLink(link) : resume(c)));
      comeBack();
    } catch (error) {
      if (!link) throw error;
      setFailed(error);
    } finally {
      setLooked(true);
    }
    return c;
  }, []);
  // A link that is opened in a tab of the console changes the fragment only.
  useEffect(() => {
    const opened = () => {
      const link = takeLink();
      if (!link) return;
      byLink(link).then(setSession, (error: unknown) => (setSession(undefined), setFailed(error)));
    };
    addEventListener('hashchange', opened);
    return () => removeEventListener('hashchange', opened);
  }, []);
  const ended = useEnded(session, setSession);
  const themeButton = (
    <button type="button" class="plain" onClick={nextTheme} title="Colours: as the system, light or dark">
      <span aria-hidden="true">{theme === 'auto' ? '◐' : theme === 'light' ? '○' : '●'}</span> <span>{theme}</span>
    </button>
  );
  if (loaded.error && !loaded.value) return <Problem error={loaded.error} title="The console cannot begin" />;
  if (!loaded.value || !looked) return <Loading what="the console" />;
  if (!session) return <SignIn key={reasonOf(failed)} config={loaded.value} themeButton={themeButton} failed={failed} signedIn={setSession} />;
  return (
    <>
      <Main
        key={session.user.username}
        config={loaded.value}
        session={session}
        themeButton={themeButton}
        signedOut={() => {
          whenEnded(undefined);
          setFailed(undefined);
          void signOut(session).then(() => setSession(undefined));
        }}
      />
      {ended && <SignInAgain config={loaded.value} themeButton={themeButton} ended={ended.user} signedIn={ended.signedIn} />}
    </>
  );
}

// useEnded lets requests that the server refuses with 401 wait for another sign-in. The page stays, with all that has been
// typed. Where another user signs in, the page is that user's, and the requests are refused.
function useEnded(session: Session | undefined, setSession: (s: Session) => void): { user: string; signedIn: (s: Session) => void } | undefined {
  const [waiting, setWaiting] = useState<((s: Session) => void) | undefined>();
  const user = session?.user.username;
  useEffect(() => {
    if (!user) return;
    let asked: Promise<boolean> | undefined;
    whenEnded(() => {
      asked ??= new Promise<boolean>((decide) => {
        setWaiting(() => (s: Session) => {
          asked = undefined;
          setWaiting(undefined);
          setSession(s);
          decide(s.user.username === user);
        });
      });
      return asked;
    });
    return () => {
      whenEnded(undefined);
      setWaiting(undefined);
    };
  }, [user]);
  return user && waiting ? { user, signedIn: waiting } : undefined;
}

function SignInAgain({ config: c, themeButton, ended, signedIn }: { config: Config; themeButton: ComponentChildren; ended: string; signedIn: (s: Session) => void }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current?.showModal();
    // Another tab may have signed in by then, by a link for example.
    const look = () => {
      if (document.visibilityState === 'visible') void again().then((s) => s?.user.username === ended && signedIn(s), () => {});
    };
    addEventListener('focus', look);
    document.addEventListener('visibilitychange', look);
    return () => {
      removeEventListener('focus', look);
      document.removeEventListener('visibilitychange', look);
    };
  }, []);
  return (
    <dialog ref={ref} class="again" aria-label="Sign in again" onCancel={(e) => e.preventDefault()}>
      <SignIn config={c} themeButton={themeButton} ended={ended} signedIn={signedIn} />
    </dialog>
  );
}

function Brand({ config: c }: { config: Config }) {
  return (
    <a class="brand" href="#/">
      {c.logo ? <img src={c.logo} alt="" height={24} /> : <span class="mark" aria-hidden="true" />}
      <span>{c.title}</span>
    </a>
  );
}

// useNamespaces lists the namespaces, or says that the user may not.
function useNamespaces(kinds: Kind[]): string[] | undefined {
  const kind = kinds.find((k) => k.group === '' && k.resource === 'namespaces');
  const [names, setNames] = useState<string[] | undefined>();
  useEffect(() => {
    const ending = new AbortController();
    void (async () => {
      if (!kind || !(await may(wanted(kind, 'list')))) return;
      while (!ending.signal.aborted) {
        try {
          const list = await get<{ items: Resource[] | null }>(pathOf(kind), { accept: 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io', signal: ending.signal });
          setNames((list.items ?? []).map((n) => n.metadata.name).sort());
        } catch {
          // The names that are known stay.
        }
        await pause(30_000, ending.signal);
      }
    })();
    return () => ending.abort();
  }, [kind]);
  return names;
}

function Main({ config: c, session, themeButton, signedOut }: { config: Config; session: Session; themeButton: ComponentChildren; signedOut: () => void }) {
  const place = usePlace();
  const [said, say] = useState('');
  useEffect(() => {
    const timer = said ? setTimeout(() => say(''), 8000) : undefined;
    return () => clearTimeout(timer);
  }, [said]);
  const kinds = useLoaded(discover, [session]);
  const [chosen, choose] = useState(() => place.parameters.get('ns') ?? localStorage.getItem('annex.namespace') ?? '');
  const inAddress = place.path[0] === 'o' && place.path[4] !== '-' ? place.path[4] : undefined;
  const namespace = place.path[0] === 'k' || place.path[0] === 'new' ? (place.parameters.get('ns') ?? chosen) : chosen;
  useEffect(() => localStorage.setItem('annex.namespace', namespace), [namespace]);
  const app = useMemo<AppState | undefined>(
    () => (kinds.value ? { config: c, session, kinds: kinds.value, namespace, say } : undefined),
    [c, session, kinds.value, namespace],
  );
  const mayRequests = useLoaded(async () => !!c.requests && mayGet(c.requests), [session]);
  const [menu, setMenu] = useState(false);
  const heading = useRef<HTMLElement>(null);
  // The keyboard follows when another view is shown.
  const where = place.path.slice(0, 6).join('/');
  const first = useRef(true);
  useEffect(() => {
    if (!first.current) heading.current?.focus();
    first.current = false;
    setMenu(false);
  }, [where]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), heading.current?.focus())}>
        Skip to the content
      </a>
      {place.path[0] === 'k' && (
        <a
          class="skip"
          href="#main"
          onClick={(e) => {
            e.preventDefault();
            document.querySelector<HTMLElement>('tbody a.to')?.focus();
          }}
        >
          Skip to the first row
        </a>
      )}
      <header class="top">
        <button type="button" class="plain narrow" aria-expanded={menu} aria-controls="menu" onClick={() => setMenu(!menu)}>
          <span aria-hidden="true">☰</span> Menu
        </button>
        <Brand config={c} />
        {app && (
          <NamespaceChoice
            app={app}
            namespace={inAddress ?? namespace}
            choose={(n) => {
              choose(n);
              const kind = kindAt(place, app.kinds);
              if (kind && place.path[0] !== 'new') go(linkToKind(kind, n));
            }}
          />
        )}
        <span class="gap" />
        <span class={menu ? 'more shown' : 'more'}>
          {mayRequests.value && <a href="#/requests">Requests</a>}
          {c.swagger && <a href={c.swagger}>API</a>}
          {themeButton}
          <span class="user" title={`by ${session.means}; in ${session.user.groups.join(', ') || 'no groups'}`}>
            {session.user.username}
          </span>
          <button type="button" onClick={signedOut}>
            Sign out
          </button>
        </span>
      </header>
      <div class="body">
        {app && (
          <AppContext.Provider value={app}>
            <InApp place={place} menu={menu} where={where} heading={heading} requests={!!mayRequests.value} signedOut={signedOut} />
          </AppContext.Provider>
        )}
        {!app && <main>{kinds.error ? <Problem error={kinds.error} /> : <Loading what="the kinds" />}</main>}
      </div>
      <div class="said" role="status" aria-live="polite">
        {said && (
          <>
            {said}{' '}
            <button type="button" class="plain" aria-label="Dismiss" onClick={() => say('')}>
              ×
            </button>
          </>
        )}
      </div>
    </>
  );
}

// Guard keeps what goes wrong in a view from taking the page away.
class Guard extends Component<{ children: ComponentChildren }, { error?: unknown }> {
  static override getDerivedStateFromError(error: unknown) {
    return { error };
  }
  render() {
    return this.state.error ? <Problem error={this.state.error} title="This view has failed" /> : this.props.children;
  }
}

function NamespaceChoice({ app, namespace, choose }: { app: AppState; namespace: string; choose: (n: string) => void }) {
  const names = useNamespaces(app.kinds);
  const [typed, setTyped] = useState(namespace);
  useEffect(() => setTyped(namespace), [namespace]);
  if (!names)
    return (
      <form
        class="namespace"
        onSubmit={(e) => {
          e.preventDefault();
          choose(typed.trim());
        }}
      >
        <label for="namespace">Namespace</label>
        <input id="namespace" value={typed} placeholder="all of mine" onInput={(e) => setTyped(e.currentTarget.value)} onBlur={() => typed.trim() !== namespace && choose(typed.trim())} />
      </form>
    );
  return (
    <div class="namespace">
      <label for="namespace">Namespace</label>
      <select id="namespace" value={namespace} onChange={(e) => choose(e.currentTarget.value)}>
        <option value="">all</option>
        {(names.includes(namespace) || !namespace ? names : [namespace, ...names]).map((n) => (
          <option value={n}>{n}</option>
        ))}
      </select>
    </div>
  );
}

function kindAt(place: Place, kinds: Kind[]): Kind | undefined {
  const [view, group, version, resource] = place.path;
  if (view !== 'k' && view !== 'o' && view !== 'new') return undefined;
  const g = group === 'core' ? '' : group;
  return kinds.find((k) => k.group === g && k.version === version && k.resource === resource) ?? kinds.find((k) => k.group === g && k.resource === resource);
}

// useShown are the kinds that the user may list, by group.
function useShown(): { groups: [string, Kind[]][]; error?: unknown; loading: boolean } {
  const { kinds, namespace, config: c } = useApp();
  const shown = useLoaded(async () => {
    const lists = kinds.filter((k) => k.verbs.includes('list'));
    const [inRules, inQuery] = await Promise.all([listable(lists, namespace), listed(c.query)]);
    return lists.filter((k) => inRules(k) || (!namespace && inQuery?.has(`${k.group}/${k.resource}`)));
  }, [kinds, namespace, c.query]);
  const last = useRef<Kind[]>([]);
  if (shown.value) last.current = shown.value;
  const groups = new Map<string, Kind[]>();
  for (const k of last.current) groups.set(k.group, [...(groups.get(k.group) ?? []), k]);
  const own = (g: string) => (isOwn(g) ? 0 : g === '' ? 1 : g.endsWith('.k8s.io') ? 3 : 2);
  return { groups: [...groups].sort(([a], [b]) => own(a) - own(b) || a.localeCompare(b)), error: shown.error, loading: !shown.value };
}

// InApp is what needs the kinds: the menu, the view, and the palette.
function InApp({ place, menu, where, heading, requests, signedOut }: {
  place: Place;
  menu: boolean;
  where: string;
  heading: { current: HTMLElement | null };
  requests: boolean;
  signedOut: () => void;
}) {
  const { kinds, namespace, config: c } = useApp();
  const shown = useShown();
  const [palette, setPalette] = useState<string | undefined>();
  const [help, setHelp] = useState(false);
  useKeys({ 'Ctrl+k': () => setPalette(''), ':': () => setPalette(':'), '?': () => setHelp(true), '/': () => document.querySelector<HTMLElement>('input.words')?.focus() });
  const actions: Entry[] = [{ what: 'Page', name: 'Home', run: () => go(link([])) }];
  if (requests) actions.push({ what: 'Page', name: 'Requests', also: 'log refused', run: () => go(link(['requests'])) });
  if (c.swagger) actions.push({ what: 'Page', name: 'API documents', also: 'swagger openapi', run: () => location.assign(c.swagger!) });
  const kind = kindAt(place, kinds);
  const [view, , , , inNamespace = '-', name = ''] = place.path;
  if (kind && view === 'o') {
    const of = inNamespace === '-' ? '' : inNamespace;
    for (const [tab, label] of [['', 'Show'], ['edit', 'Edit'], ['events', 'Events of'], ['owners', 'Owners of']] as const) actions.push({ what: 'Action', name: `${label} ${name}`, run: () => go(linkToObject(kind, of, name, tab)) });
  }
  actions.push({ what: 'Action', name: 'Keys', also: 'help shortcuts ?', run: () => setHelp(true) }, { what: 'Action', name: 'Sign out', run: signedOut });
  const listedKinds = shown.groups.flatMap(([, all]) => all);
  return (
    <>
      <Sidebar place={place} shown={shown} menu={menu} find={() => setPalette('')} />
      <main id="main" ref={heading} tabIndex={-1}>
        <Guard key={where}>{place.path.length === 0 ? <Home groups={shown.groups} loading={shown.loading} /> : <View place={place} />}</Guard>
      </main>
      {palette !== undefined && <Palette kinds={listedKinds} actions={actions} begin={palette} close={() => setPalette(undefined)} key={namespace} />}
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}

type ShownKinds = ReturnType<typeof useShown>;

function Sidebar({ place, shown: { groups, error }, menu, find }: { place: Place; shown: ShownKinds; menu: boolean; find: () => void }) {
  const { namespace, kinds } = useApp();
  const [wantedText, setWanted] = useState('');
  const current = kindAt(place, kinds);
  const needle = wantedText.toLowerCase();
  const fitting = groups.map(([group, all]) => [group, all.filter((k) => !needle || [k.kind, k.resource, k.group, ...k.shortNames].some((t) => t.toLowerCase().includes(needle)))] as const).filter(([, some]) => some.length > 0);
  // One stop for the Tab key; arrows move inside.
  const stop = fitting.some(([, some]) => some.includes(current!)) ? current : fitting[0]?.[1][0];
  const list = useRef<HTMLElement>(null);
  const arrows = (e: KeyboardEvent) => {
    const by = e.key === 'ArrowDown' ? 1 : e.key === 'ArrowUp' ? -1 : 0;
    const links = [...(list.current?.querySelectorAll<HTMLElement>('li a') ?? [])];
    const at = links.indexOf(document.activeElement as HTMLElement);
    if (!by || at < 0) return;
    e.preventDefault();
    links[at + by]?.focus();
  };
  return (
    <nav class={menu ? 'side shown' : 'side'} id="menu" aria-label="Kinds" ref={list} onKeyDown={arrows}>
      <button type="button" class="find" onClick={find}>
        Go to … <kbd>Ctrl+K</kbd>
      </button>
      <input type="search" aria-label="Find a kind" placeholder="Find a kind" value={wantedText} onInput={(e) => setWanted(e.currentTarget.value)} />
      <Problem error={error} />
      {fitting.map(([group, some]) => (
        <section key={group} aria-label={group || 'core'}>
          <h2 title={group || 'the core group'}>{group || 'core'}</h2>
          <ul>
            {some.map((k) => (
              <li key={k.resource}>
                <a href={linkToKind(k, namespace)} tabIndex={k === stop ? 0 : -1} aria-current={k === current ? 'page' : undefined} title={`${k.resource}, ${k.version}`}>
                  {k.kind}
                </a>
              </li>
            ))}
          </ul>
        </section>
      ))}
    </nav>
  );
}

function View({ place }: { place: Place }) {
  const { kinds, namespace } = useApp();
  const [view, , , , inNamespace, name, tab] = place.path;
  if (view === 'requests') return <Requests />;
  const kind = kindAt(place, kinds);
  if (!kind) return <Problem error={new Error(`this server has no ${place.path.slice(1, 4).join('/')}, or nothing of it may be seen`)} title="Not found" />;
  if (view === 'k') return <TableView key={`${kind.group}/${kind.resource}/${namespace}`} kind={kind} namespace={kind.namespaced ? namespace : ''} place={place} />;
  if (view === 'new') return <NewView key={`${kind.group}/${kind.resource}`} kind={kind} namespace={kind.namespaced ? namespace : ''} />;
  if (view === 'o' && name) return <ObjectView key={`${kind.group}/${kind.resource}/${inNamespace}/${name}`} kind={kind} namespace={inNamespace === '-' ? '' : (inNamespace ?? '')} name={name} tab={tab ?? ''} />;
  return <Problem error={new Error(`there is no view ${view}`)} title="Not found" />;
}

// A menu closes when something else is pressed.
addEventListener('pointerdown', (e) => {
  for (const menu of document.querySelectorAll<HTMLDetailsElement>('details.menu[open]')) if (!menu.contains(e.target as Node)) menu.open = false;
});
addEventListener('unhandledrejection', (e) => console.error(reasonOf(e.reason)));
if (parse(location.hash).path.length === 0 && location.hash) history.replaceState(null, '', link([]));
render(<Root />, document.getElementById('app')!);
