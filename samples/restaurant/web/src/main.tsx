// Guests order pizzas, and see their prices as soon as the controller has computed them.
import { render } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import './main.css';
import { ApiError, connect, type Api } from './api/index';
import { usePage, useWatch } from './api/react';

/** Where the server is, and who asks it: from the address of the page, such as #server=https://127.0.0.1:8443, and a form. */
const server = new URLSearchParams(location.hash.slice(1)).get('server') ?? 'https://127.0.0.1:8443';
const kept = 'restaurant.token';

function App() {
  const [token, setToken] = useState(sessionStorage.getItem(kept) ?? '');
  const api = useMemo(() => connect({ server, token, fieldManager: 'restaurant-web' }), [token]);
  if (!token) return <SignIn signedIn={(t) => (sessionStorage.setItem(kept, t), setToken(t))} />;
  return <Restaurant api={api} leave={() => (sessionStorage.removeItem(kept), setToken(''))} />;
}

function SignIn({ signedIn }: { signedIn: (token: string) => void }) {
  const [text, setText] = useState('');
  return (
    <form onSubmit={(e) => (e.preventDefault(), signedIn(text.trim()))}>
      <label>
        Token for {server}
        <input type="password" required value={text} onInput={(e) => setText(e.currentTarget.value)} />
      </label>
      <button>Sign in</button>
    </form>
  );
}

function Restaurant({ api, leave }: { api: Api; leave: () => void }) {
  const [sortBy, setSortBy] = useState<'name' | 'creationTimestamp'>('creationTimestamp');
  const { pizzas, toppings } = api.restaurant.v1beta1;
  // The server sorts, and the page is asked for again when a pizza changes.
  const ordered = usePage(pizzas.in('default'), { sortBy, limit: 100 }, [api, sortBy]);
  const menu = useWatch((signal) => toppings.watch({ signal }), [api]);
  const [error, setError] = useState<unknown>();
  if (ordered.error instanceof ApiError && ordered.error.isUnauthorized) {
    return (
      <p role="alert">
        The server does not accept the token. <button onClick={leave}>Sign in again</button>
      </p>
    );
  }
  return (
    <>
      <h1>Restaurant</h1>
      <p class="state" role="status">
        {menu.isLive ? 'live' : 'connecting'}, {ordered.data?.totalItems ?? 0} pizzas <button onClick={leave}>Sign out</button>
      </p>
      <Order
        toppings={menu.items.map((t) => t.metadata.name)}
        send={(name, chosen) =>
          pizzas
            .in('default')
            .create({ metadata: { name }, spec: { toppings: chosen.map((topping) => ({ name: topping })) } })
            .then(() => setError(undefined), setError)
        }
      />
      <Problem error={error} />
      <table>
        <thead>
          <tr>
            <th>
              <button onClick={() => setSortBy('name')}>Pizza</button>
            </th>
            <th>Toppings</th>
            <th>Cost</th>
            <th>
              <button onClick={() => setSortBy('creationTimestamp')}>Ordered</button>
            </th>
            <th></th>
          </tr>
        </thead>
        <tbody>
          {ordered.data?.items.map((pizza) => (
            <tr key={pizza.metadata.uid}>
              <td>{pizza.metadata.name}</td>
              <td>{pizza.spec.toppings?.map((t) => t.name).join(', ')}</td>
              <td>{pizza.status.cost ?? '…'}</td>
              <td>{pizza.metadata.creationTimestamp}</td>
              <td>
                <button
                  aria-label={`Cancel ${pizza.metadata.name}`}
                  onClick={() => void pizzas.in('default').delete(pizza.metadata.name, { uid: pizza.metadata.uid }).then(() => setError(undefined), setError)}
                >
                  Cancel
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function Order({ toppings, send }: { toppings: readonly string[]; send: (name: string, toppings: string[]) => void }) {
  const [name, setName] = useState('');
  const [chosen, setChosen] = useState<string[]>([]);
  return (
    <form onSubmit={(e) => (e.preventDefault(), send(name, chosen))}>
      <label>
        Name
        <input required value={name} onInput={(e) => setName(e.currentTarget.value)} />
      </label>
      <fieldset>
        <legend>Toppings</legend>
        {toppings.map((t) => (
          <label key={t}>
            <input type="checkbox" checked={chosen.includes(t)} onChange={(e) => setChosen(e.currentTarget.checked ? [...chosen, t] : chosen.filter((c) => c !== t))} /> {t}
          </label>
        ))}
      </fieldset>
      <button>Order</button>
    </form>
  );
}

function Problem({ error }: { error: unknown }) {
  if (!error) return null;
  return (
    <div role="alert">
      <p>{error instanceof Error ? error.message : String(error)}</p>
      {error instanceof ApiError && (
        <ul>
          {error.causes.map((c) => (
            <li key={c.field}>
              {c.field}: {c.message}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

render(<App />, document.getElementById('app')!);
