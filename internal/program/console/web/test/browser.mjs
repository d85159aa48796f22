// The console in a headless Chromium, against samples/cicd: what users see and do, in the order in
// which they do it. make console-test runs it.
//
//   node browser.mjs FOLDER [folder for screenshots]
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync, readdirSync, readlinkSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { accessible, at, base, byPassword, evil, field, fill, looked, open, page, password, patience, press, programs, rows, rowsAre, run, saved, see, serve, signIn, token, unharmed, unseen, write, yaml } from './shared.mjs';

const cicd = await serve('cicd');
const theatre = await serve('theatre');
// A control plane, in which people sign in by passwords.
const plane = await serve('annex', (home) => {
  for (const [name, groups] of [['grace', ['--group', 'system:masters']], ['jane', []]])
    execFileSync(join(programs, 'annex'), ['user', 'passwd', name, '--data-dir', join(home, 'data'), ...groups], { input: password[name] + '\n', stdio: ['pipe', 'pipe', 'pipe'] });
});
const { kubectl } = cicd;
const service = (name, spec = { instanceamount: 1, instancecpu: 1 }, metadata = {}) =>
  JSON.stringify({ apiVersion: 'autobusi.group.cicd/v1alpha', kind: 'JenkinsService', metadata: { name, namespace: 'default', ...metadata }, spec });

const list = '#/k/autobusi.group.cicd/v1alpha/jenkinsservices';
const pizzas = '#/k/shop.example.com/v1/pizzas';
const object = (name, tab = '') => `#/o/autobusi.group.cicd/v1alpha/jenkinsservices/default/${name}${tab && '/' + tab}`;

const steps = {
  async 'a wrong token is refused, a right one signs in'() {
    await open('/console/', cicd);
    await see('Token');
    await accessible('the sign-in');
    await fill('Token', 'wrong');
    await press('Sign in with the token');
    await see('the server does not accept this token', '[role=alert]');
    await signIn(token.ada);
    await see('ada', '.user');
    await see('JenkinsService', 'nav.side');
    await page.reload();
    await see('ada', '.user');
  },
  async 'a table fills while kubectl creates objects, and empties'() {
    await at(list);
    await see('There are no jenkinsservices');
    for (let i = 1; i <= 4; i++) {
      kubectl(['apply', '-f', '-'], service(`build-${i}`, { instanceamount: i, instancecpu: 2 }));
      await see(`build-${i}`, 'tbody');
    }
    await see('4 objects');
    await see('Approval', 'thead');
    kubectl(['delete', 'js', 'build-4', '--wait=false']);
    await unseen('build-4', 'tbody');
    await fill('Filter jenkinsservices', 'build-2');
    await see('1 object');
    for (let i = 0; i < 'build-2'.length; i++) await page.keyboard.press('Backspace');
    await see('3 objects');
    await press('Name');
    await press('Name');
    await page.waitForFunction(() => document.querySelector('tbody a.to').textContent === 'build-3', patience);
  },
  async 'an object is created by a form, and a mistake is at its field'() {
    await at('#/new/autobusi.group.cicd/v1alpha/jenkinsservices?ns=default');
    await (await field('name')).fill('made');
    await (await field('instanceamount')).fill('99');
    await (await field('instancecpu')).fill('1');
    await press('Create');
    await page.waitForSelector('.labelled.wrong .cause', patience);
    const cause = await page.$eval('.labelled.wrong', (e) => [e.querySelector('label').textContent, e.querySelector('input').getAttribute('aria-invalid'), e.querySelector('.cause').textContent]);
    assert.match(cause[0], /instanceamount/);
    assert.equal(cause[1], 'true');
    await looked('mistake');
    await (await field('instanceamount')).fill('1');
    await press('Create');
    await see('JenkinsService made was created.');
    assert.equal(kubectl(['get', 'js', 'made', '-o', 'jsonpath={.spec.instanceamount}']), '1');
  },
  async 'an edit as YAML names the line of a mistake, and is applied when it is right'() {
    await at(object('made', 'edit'));
    await press('YAML');
    const before = await yaml();
    await write(before.replace('instanceamount: 1', 'instanceamount: 77'));
    await press('Review and save');
    await page.waitForSelector('.causes button', patience);
    const line = before.split('\n').findIndex((l) => l.includes('instanceamount')) + 1;
    assert.equal(await page.$eval('.causes button', (e) => e.textContent), `line ${line}`);
    await write(before.replace('instancecpu: 1', 'instancecpu: ['));
    await page.waitForFunction(() => [...document.querySelectorAll('button')].find((b) => b.textContent.trim() === 'Review and save').disabled, patience);
    await write(before.replace('instancecpu: 1', 'instancecpu: 2'));
    await saved();
    const managers = JSON.parse(kubectl(['get', 'js', 'made', '-o', 'json', '--show-managed-fields'])).metadata.managedFields;
    assert.ok(managers.some((m) => m.manager === 'annex-console:ada' && m.operation === 'Apply' && JSON.stringify(m.fieldsV1).includes('f:instancecpu')), JSON.stringify(managers));
  },
  async 'an edit that takes a field away of another manager does so'() {
    kubectl(['label', 'js', 'made', 'team=a', 'tier=b']);
    await at(object('made', 'edit'));
    await press('YAML');
    await see('tier: b', '.cm-content');
    await write((await yaml()).replace(/ *tier: b\n/, ''));
    await saved();
    assert.equal(kubectl(['get', 'js', 'made', '-o', 'jsonpath={.metadata.labels}']), '{"team":"a"}');
  },
  async 'an action is a button with a form, and changes what the page shows'() {
    await at(object('made'));
    await press('approval');
    await page.waitForSelector('dialog select, dialog input', patience);
    await looked('action');
    const select = await page.$('dialog .form select');
    if (select) await select.select('Approved');
    else await page.type('dialog .form input', 'Approved');
    await page.locator('dialog ::-p-text(Copy as …)').click();
    await see('kubectl create --raw=/apis/', 'dialog dialog');
    await see('/made/approval', 'dialog dialog');
    await see('Approved', 'dialog dialog');
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.querySelectorAll('dialog').length === 1, patience);
    await page.locator('dialog button.primary').click();
    await see('was accepted');
    await press('Close');
    await see('Approved', 'pre');
    kubectl(['wait', 'js/made', '--for=jsonpath={.status.instances[0].running}=true', '--timeout=30s']);
  },
  async 'a log is followed'() {
    await at(object('made', 'logs'));
    await see('instance', 'pre.log');
    await see('following');
    await looked('logs');
  },
  async 'a command runs in a terminal'() {
    await at(object('made', 'exec'));
    await press('Run');
    await see('connected');
    await page.waitForSelector('.xterm-helper-textarea', patience);
    // A shell forgets what is typed before its prompt.
    await page.waitForFunction(() => /[#$] /.test(document.querySelector('.xterm-rows').textContent), patience);
    await page.type('.xterm-helper-textarea', 'echo sum=$((40+2)) $NAME\n');
    await page.waitForFunction(() => document.querySelector('.xterm-rows').textContent.includes('sum=42 made'), patience);
    // Cells are as wide as the sheet says that the library wrote.
    const styled = await page.evaluate(() => document.adoptedStyleSheets.length > 0 && document.querySelectorAll('.tty style').length === 0);
    assert.ok(styled, 'the styles of the terminal are adopted sheets');
    await looked('terminal');
    await press('Copy as …');
    await see('kubectl annex exec --stdin --tty --namespace=default jenkinsservices.autobusi.group.cicd/made -- sh', 'dialog');
    await press('Close');
    await page.type('.xterm-helper-textarea', 'exit 7\n');
    await see('exit status 7');
  },
  async 'owners are a graph'() {
    const uid = kubectl(['get', 'js', 'made', '-o', 'jsonpath={.metadata.uid}']);
    kubectl(['apply', '-f', '-'], service('child', { instanceamount: 1, instancecpu: 1 }, { ownerReferences: [{ apiVersion: 'autobusi.group.cicd/v1alpha', kind: 'JenkinsService', name: 'made', uid }] }));
    await at(object('made', 'owners'));
    await page.waitForFunction(() => document.querySelectorAll('svg .node').length === 2 && document.querySelectorAll('svg .edge').length === 1, patience);
    await looked('owners');
  },
  async 'what a log and a terminal print commands nothing'() {
    // What the instance prints is what is written to the pipe of its process.
    const pipes = readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && targetOf(`/proc/${pid}/cwd`).startsWith(join(cicd.home, 'tmp')) && targetOf(`/proc/${pid}/fd/1`).startsWith('pipe:'));
    assert.ok(pipes.length > 0, 'there is no process of an instance');
    appendFileSync(`/proc/${pipes[0]}/fd/1`, `\x1b]0;hostile\x07\x1b[2J\x1b[31mred\x1b]8;;javascript:console.log('XSS')\x1b\\link\x1b]8;;\x1b\\ ${evil}\n`);
    await at(object('made', 'logs'));
    await press('Read again');
    await see('<script>', 'pre.log');
    await unharmed();
    await at(object('made', 'exec'));
    await fill('Command', `sh -c "printf '\\033]0;hostile\\007\\033]52;c;ZXZpbA==\\007\\033]8;;javascript:console.log(1)\\033\\\\\\\\link\\033]8;;\\033\\\\\\\\'; echo '<img src=x onerror=console.log(1)>'; sleep 1"`);
    await press('Run');
    await page.waitForFunction(() => document.querySelector('.xterm-rows')?.textContent.includes('<img src=x'), patience);
    assert.notEqual(await page.title(), 'hostile');
    await unharmed();
  },
  async 'strings of objects are text, whatever they are'() {
    kubectl(['apply', '-f', '-'], service('evil', { instanceamount: 1, instancecpu: 1 }, { annotations: { evil, 'a.b/constructor': evil }, labels: { __proto__: 'x', constructor: 'toString' }, finalizers: ['example.com/x'] }));
    kubectl(['patch', 'js', 'evil', '--subresource=status', '--type=merge', '-p', JSON.stringify({ status: { message: evil, conditions: [{ type: evil, status: 'True', reason: evil, message: evil }] } })]);
    for (const hash of [list, object('evil'), object('evil', 'edit'), object('evil', 'owners'), '#/' + encodeURIComponent(evil), `#/k/core/v1/${encodeURIComponent(evil)}`, `#/o/core/v1/namespaces/-/${encodeURIComponent(evil)}`]) {
      await at(hash);
      await page.waitForNetworkIdle({ idleTime: 200, timeout: 5000 }).catch(() => {}); // watches stay
      await unharmed();
    }
    await at(object('evil'));
    await see('<script>', 'pre');
    await at(object('evil', 'edit'));
    await press('YAML');
    await unharmed();
  },
  async 'deletion asks first, and says how it goes on'() {
    await at(object('build-1'));
    await press('Delete');
    await page.waitForSelector('dialog[open]', patience);
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => !document.querySelector('dialog'), patience);
    assert.match(kubectl(['get', 'js', '-o', 'name']), /build-1/);
    await press('Delete');
    await page.locator('dialog button.danger').click();
    await see('is being deleted');
    await unseen('build-1', 'tbody');
  },
  async 'everything is reached by the keyboard'() {
    await page.reload();
    await at(list);
    await see('build-2', 'tbody');
    await page.evaluate(() => document.activeElement.blur());
    const seen = new Set();
    for (let i = 0; i < 40; i++) {
      await page.keyboard.press('Tab');
      const focus = await page.evaluate(() => {
        const e = document.activeElement;
        if (e === document.body) return { name: '', outline: '' };
        return { name: (e.getAttribute('aria-label') ?? e.textContent).trim(), outline: getComputedStyle(e).outlineStyle };
      });
      if (focus.name) assert.notEqual(focus.outline, 'none', `the focus on ${focus.name} is not visible`);
      seen.add(focus.name);
    }
    for (const name of ['Skip to the content', 'Sign out', 'JenkinsService', 'New JenkinsService', 'build-2', 'Name']) assert.ok([...seen].some((s) => s.startsWith(name)), `${name} is not reached: ${[...seen]}`);
  },
  async 'the page is dark where the system or the user wants it'() {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'dark' }]);
    assert.notEqual(await ground(), light);
    await accessible('the dark table');
    await at(object('made'));
    await see('instancecpu', 'pre');
    await accessible('the dark object');
    await at(list);
    await see('made', 'tbody');
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
    assert.equal(await ground(), light);
    await accessible('the table');
  },
  async 'a user with few rights is offered what it may do'() {
    kubectl(['create', 'role', 'looker', '--verb=get,list,watch', '--resource=jenkinsservices.autobusi.group.cicd', '-n', 'default']);
    kubectl(['create', 'rolebinding', 'looker', '--role=looker', '--user=vic', '-n', 'default']);
    await open('/console/', cicd);
    await signIn(token.vic);
    await fill('Namespace', 'default');
    await page.keyboard.press('Enter');
    await see('JenkinsService', 'nav.side');
    await unseen('ClusterRole', 'nav.side');
    await at(list + '?ns=default');
    await see('made', 'tbody');
    await unseen('New JenkinsService');
    await at(object('made'));
    await see('instancecpu', 'pre');
    for (const not of ['Delete', 'approval', 'Edit', 'Terminal', 'Logs']) assert.equal((await page.$$(`::-p-aria([name="${not}"])`)).length, 0, `${not} is offered`);
    await press('Sign out');
    await see('Sign in with the token');
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  },
  async 'Swagger UI is signed in as the console is'() {
    await open('/console/', cicd);
    await signIn(token.ada);
    await page.goto(base + '/swagger-ui/#apis/autobusi.group.cicd/v1alpha', { waitUntil: 'domcontentloaded' });
    await see('autobusi', '#swagger');
    await page.locator('.opblock-tag').click();
    await see('/apis/autobusi.group.cicd/v1alpha/namespaces/{namespace}/jenkinsservices', '#swagger');
    await page.locator('#operations-autobusiGroupCicd_v1alpha-listAutobusiGroupCicdV1alphaJenkinsServiceForAllNamespaces .opblock-summary-control, .opblock-get .opblock-summary-control').click();
    await page.locator('.execute').click();
    await page.waitForFunction(() => document.querySelector('.live-responses-table tbody .response-col_status')?.innerText.startsWith('200'), patience);
  },
  async 'an operation is shown with its progress'() {
    theatre.kubectl(['apply', '-f', '-'], JSON.stringify({ apiVersion: 'theatre.example.com/v1', kind: 'Play', metadata: { name: 'hamlet', namespace: 'default' }, spec: { title: 'Hamlet' } }));
    await open('/console/', theatre);
    await signIn(token.ada);
    await at('#/o/theatre.example.com/v1/plays/default/hamlet');
    await press('perform');
    await page.waitForSelector('dialog .form input', patience);
    await (await field('acts')).fill('200');
    await page.locator('dialog button.primary').click();
    await page.waitForFunction(() => document.querySelector('progress')?.value > 0, patience);
    await see('Running', 'pre');
    await looked('operation');
    await see('Succeeded', 'pre');
  },
  async 'people sign in by a password, and a wrong one is refused'() {
    const names = ['one', 'two', 'three', 'four', 'five'];
    plane.kubectl(['apply', '-f', '-'], JSON.stringify(definition()));
    plane.kubectl(['wait', 'crd/pizzas.shop.example.com', '--for=condition=Established', '--timeout=30s']);
    for (const [i, name] of names.entries()) {
      plane.kubectl(['create', 'namespace', `team-${name}`]);
      const pizzas = [0, 1, 2].map((j) => pizza(`team-${name}`, `pizza-${name}-${j}`, { cost: 10 * j + i, size: j === 1 ? 'large' : 'small', note: `of ${name}` }));
      plane.kubectl(['create', '-f', '-'], JSON.stringify({ apiVersion: 'v1', kind: 'List', items: pizzas }));
    }
    await open('/console/', plane);
    await see('User name');
    await accessible('the sign-in by password');
    await byPassword('grace', 'wrong');
    await see('the user name or the password is wrong', '[role=alert]');
    await byPassword('grace');
    await see('grace', '.user');
    await see('Pizza', 'nav.side');
    // The session is the browser's, and is good for tokens only.
    assert.equal(await page.evaluate(() => document.cookie), '');
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    assert.equal(await page.evaluate(async () => (await fetch('/api/v1/namespaces', { credentials: 'include' })).status), 401);
    await page.reload();
    await see('grace', '.user');
  },
  async 'the query API sorts and filters, and says which values there are'() {
    await at(pizzas);
    await see('15 objects');
    await press('Cost');
    await rowsAre(['pizza-one-0', 'pizza-two-0', 'pizza-three-0', 'pizza-four-0', 'pizza-five-0', 'pizza-one-1', 'pizza-two-1', 'pizza-three-1', 'pizza-four-1', 'pizza-five-1', 'pizza-one-2', 'pizza-two-2', 'pizza-three-2', 'pizza-four-2', 'pizza-five-2'], 1);
    await press('Cost');
    await page.waitForFunction(() => document.querySelector('tbody tr')?.textContent.includes('pizza-five-2'), patience);
    await press('+ Filter');
    await page.locator('select[aria-label=Field]').setTimeout(patience.timeout).wait();
    await page.select('select[aria-label=Field]', 'spec.size');
    await page.waitForFunction(() => JSON.stringify([...document.querySelectorAll('.filter datalist option')].map((o) => o.textContent)) === '["small (10)","large (5)"]', patience);
    await fill('Value', 'large');
    await page.keyboard.press('Enter');
    await see('5 objects');
    await rowsAre(['pizza-five-1', 'pizza-four-1', 'pizza-three-1', 'pizza-two-1', 'pizza-one-1'], 1);
    // What is selected follows what happens.
    plane.kubectl(['patch', 'pizza', 'pizza-one-0', '-n', 'team-one', '--type=merge', '-p', '{"spec":{"size":"large"}}']);
    await see('6 objects');
    await looked('filters');
    plane.kubectl(['patch', 'pizza', 'pizza-one-0', '-n', 'team-one', '--type=merge', '-p', '{"spec":{"size":"small"}}']);
    await see('5 objects');
  },
  async 'events are told with their object'() {
    plane.kubectl(['create', '-f', '-'], JSON.stringify(event('pizza-one-0', 'Baked', 'it is done')));
    await at(`#/o/shop.example.com/v1/pizzas/team-one/pizza-one-0/events`);
    await see('it is done', 'tbody');
    plane.kubectl(['create', '-f', '-'], JSON.stringify(event('pizza-one-0', 'Burnt', 'it was done before')));
    await see('it was done before', 'tbody');
    await looked('events');
  },
  async 'no string of a definition, an object or an event is executed'() {
    plane.kubectl(['apply', '-f', '-'], JSON.stringify(definition(evil)));
    plane.kubectl(['create', '-f', '-'], JSON.stringify(pizza('team-one', 'evil', { cost: 1, size: 'small', note: evil, kind: evil }, { annotations: { evil }, labels: { evil: 'x'.repeat(63) }, finalizers: ['example.com/' + 'x'.repeat(20)] })));
    plane.kubectl(['create', '-f', '-'], JSON.stringify(event('evil', evil.slice(0, 100), evil)));
    plane.kubectl(['create', '-f', '-'], JSON.stringify({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'evil', namespace: 'team-one', annotations: { evil } }, data: { evil } }));
    await page.reload();
    const own = '#/o/shop.example.com/v1/pizzas/team-one/evil';
    for (const [hash, text] of [
      [pizzas, '<img src=x'], [own, '<script>'], [own + '/edit', 'note'], [own + '/events', '<script>'], [own + '/owners', 'owner'], ['#/new/shop.example.com/v1/pizzas?ns=team-one', 'note'],
      ['#/o/core/v1/configmaps/team-one/evil', '<script>'], ['#/o/core/v1/configmaps/team-one/evil/edit', 'data'], ['#/o/apiextensions.k8s.io/v1/customresourcedefinitions/-/pizzas.shop.example.com', '<script>'],
    ]) {
      await at(hash);
      await see(text);
      await unharmed();
    }
    // What the definition says of its fields is in the form.
    await at('#/new/shop.example.com/v1/pizzas?ns=team-one');
    await see('<script>', '.hint');
    await page.waitForFunction(() => [...document.querySelectorAll('.form option')].some((o) => o.textContent.includes('<script>')), patience);
    await unharmed();
    await page.goto(base + '/swagger-ui/#apis/shop.example.com/v1', { waitUntil: 'domcontentloaded' });
    await see('shop', '#swagger');
    await page.locator('.opblock-tag').setTimeout(patience.timeout).click();
    for (const summary of (await page.$$('.opblock-summary-control')).slice(0, 3)) await summary.click();
    await page.waitForSelector('.opblock-body', patience);
    await page.evaluate(() => document.querySelectorAll('.model-toggle, .tablinks, .models-control, .expand-operation').forEach((e) => e.click()));
    assert.equal(await page.evaluate(() => document.querySelectorAll('#swagger script, #swagger [onerror], #swagger [onload], #swagger a[href^="javascript:"]').length), 0);
    assert.equal(await page.evaluate(() => globalThis.polluted), undefined);
  },
  async 'another site can neither frame the pages nor use their session'() {
    for (const path of ['/console/', '/swagger-ui/', '/console/config.json', '/oauth/authorize', '/console/missing']) {
      const headers = await page.evaluate(async (p) => Object.fromEntries((await fetch(p)).headers), path);
      assert.equal(headers['x-frame-options'], 'DENY', path);
      assert.match(headers['content-security-policy'], /frame-ancestors 'none'/, path);
      assert.equal(headers['x-content-type-options'], 'nosniff', path);
    }
    // On the same host, at another port: cookies go along, whatever their SameSite says.
    const site = createServer((_, w) => w.writeHead(200, { 'Content-Type': 'text/html' }).end('<!doctype html><title>evil</title><body></body>'));
    await new Promise((r) => site.listen(0, '127.0.0.1', r));
    const hostile = await page.browserContext().newPage();
    try {
      const tried = [];
      hostile.on('response', (r) => r.url().startsWith(base) && tried.push(`${r.request().method()} ${new URL(r.url()).pathname} ${r.status()}`));
      await hostile.goto(`http://127.0.0.1:${site.address().port}/`);
      const seen = await hostile.evaluate(async (target) => {
        const result = {};
        const frame = document.createElement('iframe');
        frame.src = target + '/console/';
        document.body.append(frame);
        await new Promise((r) => (frame.onload = r));
        try {
          result.framed = frame.contentWindow.document.body.innerText;
        } catch {
          result.framed = '';
        }
        const untyped = new Blob([JSON.stringify({ username: 'grace', password: 'correct horse battery' })]);
        for (const [name, path, init] of [
          ['token', '/oauth/session/token', { method: 'POST', headers: { 'X-Annex-Session': '1' } }],
          ['end', '/oauth/session', { method: 'DELETE' }],
          ['signin', '/oauth/session', { method: 'POST', body: untyped, mode: 'no-cors' }],
          ['create', '/api/v1/namespaces', { method: 'POST', body: untyped, mode: 'no-cors' }],
          ['read', '/api/v1/namespaces', {}],
        ])
          result[name] = await fetch(target + path, { credentials: 'include', ...init }).then((r) => (r.type === 'opaque' ? 'opaque' : 'readable'), () => 'refused');
        result.socket = await new Promise((r) => {
          const socket = new WebSocket(target.replace('https', 'wss') + '/query/core/v1/namespaces?watch=true');
          socket.onopen = () => r('open');
          socket.onerror = () => r('refused');
        });
        return result;
      }, base);
      assert.deepEqual(seen, { framed: '', token: 'refused', end: 'refused', signin: 'opaque', create: 'opaque', read: 'refused', socket: 'refused' });
      for (const answer of tried.filter((t) => /^(POST|DELETE) /.test(t))) assert.match(answer, / (401|403)$/, answer);
    } finally {
      await hostile.close();
      await new Promise((r) => site.close(r));
    }
    await page.goto(base + '/console/', { waitUntil: 'domcontentloaded' });
    await see('grace', '.user');
  },
  async 'a user who may list in two of five namespaces sees these two'() {
    for (const ns of ['team-two', 'team-four']) {
      plane.kubectl(['create', 'role', 'looker', '--verb=list,watch', '--resource=pizzas.shop.example.com', '-n', ns]);
      plane.kubectl(['create', 'rolebinding', 'looker', '--role=looker', '--user=jane', '-n', ns]);
    }
    await open('/console/', plane);
    await byPassword('jane');
    await see('jane', '.user');
    await see('Pizza', 'nav.side');
    assert.deepEqual(await page.$$eval('nav.side li a', (all) => all.map((a) => a.textContent)), ['Pizza']);
    await at(pizzas);
    await see('6 objects');
    const both = ['pizza-four-0', 'pizza-four-1', 'pizza-four-2', 'pizza-two-0', 'pizza-two-1', 'pizza-two-2'];
    await rowsAre(both, 1);
    assert.deepEqual([...new Set((await rows()).map((r) => r[0]))], ['team-four', 'team-two']);
    await press('Cost');
    await rowsAre(['pizza-two-0', 'pizza-four-0', 'pizza-two-1', 'pizza-four-1', 'pizza-two-2', 'pizza-four-2'], 1);
    await press('+ Filter');
    await page.locator('select[aria-label=Field]').setTimeout(patience.timeout).wait();
    await page.select('select[aria-label=Field]', 'namespace');
    await page.waitForFunction(() => JSON.stringify([...document.querySelectorAll('.filter datalist option')].map((o) => o.textContent)) === '["team-four (3)","team-two (3)"]', patience);
    await fill('Value', 'team-one');
    await page.keyboard.press('Enter');
    await see('0 objects');
    await press('Remove this filter');
    await see('6 objects');
    // What others do elsewhere is not seen, and what they do here is.
    plane.kubectl(['create', '-f', '-'], JSON.stringify(pizza('team-one', 'unseen', { cost: 5, size: 'small' })));
    plane.kubectl(['create', '-f', '-'], JSON.stringify(pizza('team-two', 'seen', { cost: 5, size: 'small' })));
    await see('7 objects');
    await see('seen', 'tbody');
    assert.ok(!(await rows()).some((r) => r.includes('unseen') || r.includes('team-one')));
    plane.kubectl(['delete', 'pizza', 'seen', '-n', 'team-two']);
    await see('6 objects');
    await accessible('the table of some namespaces');
    const offers = () => page.$$eval('main a.button, main button', (all) => all.map((e) => e.textContent.trim()));
    for (const hash of [pizzas, pizzas + '?ns=team-two', pizzas + '?ns=team-one', '#/o/shop.example.com/v1/pizzas/team-two/pizza-two-0', '#/o/shop.example.com/v1/pizzas/team-one/pizza-one-0', '#/k/core/v1/secrets', '#/k/core/v1/namespaces', '#/']) {
      await at(hash);
      await page.waitForNetworkIdle({ idleTime: 300, timeout: 5000 }).catch(() => {}); // watches stay
      for (const offer of await offers()) assert.doesNotMatch(offer, /^(New|Delete|Edit|Save)/, `${hash} offers ${offer}`);
      const text = await page.evaluate(() => document.querySelector('main').innerText);
      if (hash.includes('team-one')) assert.doesNotMatch(text, /of one|pizza-one-1/, hash);
    }
    await at(pizzas + '?ns=team-one');
    await see('cannot list resource "pizzas"', 'main');
    await see('0 objects', 'main');
  },
};

// definition is of pizzas, which can be sorted by their cost and chosen by their size; its texts may be hostile.
function definition(text = 'what it says') {
  const properties = { cost: { type: 'number', description: text }, size: { type: 'string', description: text }, note: { type: 'string', description: text }, kind: { type: 'string', description: text, enum: ['plain', text], default: text } };
  return {
    apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition', metadata: { name: 'pizzas.shop.example.com', annotations: { text } },
    spec: {
      group: 'shop.example.com', scope: 'Namespaced', names: { plural: 'pizzas', singular: 'pizza', kind: 'Pizza' },
      versions: [{
        name: 'v1', served: true, storage: true, selectableFields: [{ jsonPath: '.spec.size' }],
        schema: { openAPIV3Schema: { type: 'object', description: text, properties: { spec: { type: 'object', description: text, properties } } } },
        additionalPrinterColumns: [
          { name: 'Cost', type: 'number', jsonPath: '.spec.cost', description: text }, { name: 'Size', type: 'string', jsonPath: '.spec.size' }, { name: text, type: 'string', jsonPath: '.spec.note', description: text },
        ],
      }],
    },
  };
}
function pizza(namespace, name, spec, metadata = {}) {
  return { apiVersion: 'shop.example.com/v1', kind: 'Pizza', metadata: { name, namespace, ...metadata }, spec };
}
function event(name, reason, message) {
  const uid = plane.kubectl(['get', 'pizza', name, '-n', 'team-one', '-o', 'jsonpath={.metadata.uid}']);
  const now = new Date().toISOString().replace(/\.\d+Z/, 'Z');
  return {
    apiVersion: 'v1', kind: 'Event', metadata: { generateName: 'e-', namespace: 'team-one' }, involvedObject: { apiVersion: 'shop.example.com/v1', kind: 'Pizza', name, namespace: 'team-one', uid },
    reason, message, type: 'Warning', source: { component: message }, firstTimestamp: now, lastTimestamp: now, count: 1,
  };
}
function targetOf(link) {
  try {
    return readlinkSync(link);
  } catch {
    return '';
  }
}

await run(steps);
