// Signing in: by password or by another provider if the server has a login, by a token, or by the
// certificate that the browser shows.

import { type ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { byCertificate, byPassword, byToken, type Config, leave, type Session } from './session';
import { Field, Problem, Version } from './widgets';

interface Given {
  config: Config;
  themeButton: ComponentChildren;
  failed?: unknown; // of a sign-in link
  ended?: string | undefined; // the user whose session has ended
  signedIn: (s: Session) => void;
}

export function SignIn({ config, themeButton, failed, ended, signedIn }: Given) {
  const [error, setError] = useState<unknown>(failed);
  const [busy, setBusy] = useState(false);
  const attempt = (run: () => Promise<Session>) => (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError(undefined);
    run()
      .then(signedIn, setError)
      .finally(() => setBusy(false));
  };
  const [username, setUsername] = useState('');
  const [password, setPassword] = useState('');
  const [token, setToken] = useState('');
  const [keep, setKeep] = useState(true);
  const providers = config.login?.providers ?? [];
  const Frame = ended ? 'div' : 'main';
  return (
    <Frame class="signin">
      <div class="card">
        <header>
          {config.logo ? <img src={config.logo} alt="" height={32} /> : <span class="mark" aria-hidden="true" />}
          <h1>{config.title}</h1>
          <span class="gap" />
          {themeButton}
        </header>
        {ended && (
          <p role="status">
            Your session has ended. Sign in again as <b>{ended}</b> to go on where you were: nothing that you have typed is lost.
          </p>
        )}
        <Problem error={error} title="Not signed in" />
        {config.link && (
          <p>
            Where the server runs, <code>{config.link} --open</code> opens this page and signs you in.
          </p>
        )}
        {config.login?.password && (
          <form onSubmit={attempt(() => byPassword(username, password))}>
            <Field label="User name">{(id) => <input id={id} required autocomplete="username" value={username} onInput={(e) => setUsername(e.currentTarget.value)} />}</Field>
            <Field label="Password">
              {(id) => <input id={id} required type="password" autocomplete="current-password" value={password} onInput={(e) => setPassword(e.currentTarget.value)} />}
            </Field>
            <button type="submit" class="primary" disabled={busy}>
              Sign in
            </button>
          </form>
        )}
        {providers.map((p) => (
          <a class="button" href={`/oauth/login?provider=${encodeURIComponent(p.name)}&return=/console/`} onClick={leave}>
            Sign in with {p.title || p.name}
          </a>
        ))}
        <form onSubmit={attempt(() => byToken(token.trim(), keep))}>
          <Field label="Token" hint="a bearer token, such as one of a service account">
            {(id) => <input id={id} required type="password" autocomplete="off" value={token} onInput={(e) => setToken(e.currentTarget.value)} />}
          </Field>
          <label class="check">
            <input type="checkbox" checked={keep} onChange={(e) => setKeep(e.currentTarget.checked)} /> keep it until this tab is closed
          </label>
          <button type="submit" class={config.login?.password ? '' : 'primary'} disabled={busy}>
            Sign in with the token
          </button>
        </form>
        {config.clientCertificate && location.protocol === 'https:' && (
          <form onSubmit={attempt(byCertificate)}>
            <button type="submit" disabled={busy}>
              Sign in with the browser's certificate
            </button>
          </form>
        )}
        <Version config={config} />
      </div>
    </Frame>
  );
}
