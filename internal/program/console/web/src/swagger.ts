// Swagger UI over the server's OpenAPI documents, signed in as the console is.

import './swagger.css';
import { currentToken, get, reasonOf } from './api';
import { config, resume } from './session';

interface Request_ {
  url: string;
  headers: Record<string, string>;
}
declare const SwaggerUIBundle: (options: object) => unknown;

async function start(): Promise<void> {
  const bar = document.getElementById('bar')!;
  const c = await config();
  document.title = `${c.title}: API`;
  const session = await resume(c);
  const home = document.createElement(c.console ? 'a' : 'strong');
  if (c.console) home.setAttribute('href', c.console);
  home.textContent = c.title;
  bar.append(home);
  if (!session) {
    // A certificate of the browser needs no token, and shows when the documents are read.
    const hint = document.createElement('span');
    hint.textContent = 'Not signed in: sign in at the console, in this tab.';
    bar.append(hint);
  } else {
    const who = document.createElement('span');
    who.textContent = session.user.username;
    bar.append(who);
  }
  const { paths } = await get<{ paths: Record<string, { serverRelativeURL: string }> }>('/openapi/v3');
  const label = document.createElement('label');
  label.textContent = 'API ';
  const select = document.createElement('select');
  // What the server is for comes first, then what all servers have, and what is no version of a group.
  const rank = (name: string) => (name.split('/').length < 3 && name !== 'api/v1' ? 3 : name.includes('.k8s.io/') ? 2 : name === 'api/v1' ? 1 : 0);
  const names = Object.keys(paths).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  for (const name of names) select.append(new Option(name, name));
  label.append(select);
  bar.append(label);
  const show = () => {
    location.hash = '';
    history.replaceState(null, '', '#' + select.value);
    SwaggerUIBundle({
      url: paths[select.value]!.serverRelativeURL,
      dom_id: '#swagger',
      deepLinking: false,
      validatorUrl: null,
      docExpansion: 'none',
      defaultModelsExpandDepth: 0,
      persistAuthorization: false,
      requestInterceptor: (r: Request_) => {
        // The token goes to this server only, whatever a document names.
        if (currentToken() && new URL(r.url, location.href).origin === location.origin) r.headers['Authorization'] = 'Bearer ' + currentToken();
        return r;
      },
    });
  };
  const asked = decodeURIComponent(location.hash.slice(1));
  if (paths[asked]) select.value = asked;
  select.addEventListener('change', show);
  show();
}

start().catch((error: unknown) => {
  const problem = document.createElement('p');
  problem.setAttribute('role', 'alert');
  problem.textContent = reasonOf(error);
  document.getElementById('bar')!.append(problem);
});
