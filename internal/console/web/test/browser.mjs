// The console in a headless Chromium, against samples/cicd: what users see and do, in the order in
// which they do it. make browser runs it.
//
//   node browser.mjs SERVER KUBECTL [folder for screenshots]
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import puppeteer from 'puppeteer-core';

const [server, kubectlPath, shots] = process.argv.slice(2).map((path) => resolve(path));
const chromium = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
if (!chromium) {
  console.log('chromium is not installed: the console is not tested in a browser (Debian: apt-get install chromium)');
  process.exit(0);
}
const dir = mkdtempSync(join(tmpdir(), 'console-'));
const token = { ada: 'ada-0123456789abcdef', vic: 'vic-0123456789abcdef' };
writeFileSync(join(dir, 'tokens.csv'), `${token.ada},ada,1,"system:masters"\n${token.vic},vic,2,"viewers"\n`, { mode: 0o600 });

const running = spawn(server, ['serve', '--data-dir', join(dir, 'data'), '--secure-port', '0', '--token-auth-file', join(dir, 'tokens.csv')], { cwd: dir });
let printed = '';
let log = '';
running.stderr.on('data', (d) => (log += d));
const base = await new Promise((ready, reject) => {
  running.stdout.on('data', (d) => {
    printed += d;
    const m = printed.match(/^console: (https:\S+)\/console\/$/m);
    if (m && printed.includes('try: ')) ready(m[1]);
  });
  running.on('exit', (code) => reject(new Error(`the server has ended with ${code}:\n${printed}${log}`)));
  setTimeout(() => reject(new Error(`the server is not ready:\n${printed}${log}`)), 60_000).unref();
});
const kubectl = (args, input) => execFileSync(kubectlPath, ['--kubeconfig', join(dir, 'data', 'kubeconfig'), ...args], { input, encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'] });
const service = (name, spec = { instanceamount: 1, instancecpu: 1 }, metadata = {}) =>
  JSON.stringify({ apiVersion: 'autobusi.group.cicd/v1alpha', kind: 'JenkinsService', metadata: { name, namespace: 'default', ...metadata }, spec });

const browser = await puppeteer.launch({ executablePath: chromium, headless: true, acceptInsecureCerts: true, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
const patience = { timeout: 15_000 };
const wrong = []; // what a browser complains of, of all pages
let page;

async function open(path = '/console/') {
  const context = await browser.createBrowserContext();
  page = await context.newPage();
  await page.setViewport({ width: 1280, height: 800 });
  page.on('pageerror', (e) => wrong.push(`error in the page: ${e.message}`));
  page.on('console', (m) => {
    const text = m.text();
    if (/Content.Security.Policy/i.test(text)) wrong.push(`policy: ${text}`);
    if (text.startsWith('XSS')) wrong.push(text);
  });
  page.on('dialog', (d) => {
    wrong.push(`a dialog: ${d.message()}`);
    void d.dismiss();
  });
  page.on('request', (r) => {
    if (!r.url().startsWith(base) && !r.url().startsWith('data:') && !r.url().startsWith(base.replace('https', 'wss'))) wrong.push(`a request elsewhere: ${r.url()}`);
  });
  await page.goto(base + path, { waitUntil: 'domcontentloaded' });
}
const see = (text, selector = 'body') =>
  page.waitForFunction((t, s) => [...document.querySelectorAll(s)].some((e) => (e.innerText ?? e.textContent).includes(t)), patience, text, selector).catch(async () => {
    throw new Error(`${selector} does not show ${JSON.stringify(text)}, but\n${await page.evaluate(() => document.body.innerText)}`);
  });
const unseen = (text, selector = 'body') =>
  page.waitForFunction((t, s) => ![...document.querySelectorAll(s)].some((e) => e.innerText.includes(t)), patience, text, selector);
const press = (name, role = 'button') => page.locator(`::-p-aria([name="${name}"][role="${role}"])`).setTimeout(patience.timeout).click();
const fill = (name, text) => page.locator(`::-p-aria([name="${name}"])`).setTimeout(patience.timeout).fill(text);
// field finds what a label is of, whatever marks the label has.
const field = async (label) => {
  const id = await (await page.waitForFunction((t) => [...document.querySelectorAll('.form label')].find((l) => l.textContent.replace(' *', '') === t)?.htmlFor, patience, label)).jsonValue();
  return page.locator(`[id="${id}"]`).setTimeout(patience.timeout);
};
const at = (hash) => page.evaluate((h) => (location.hash = h), hash);
const shot = async (name) => {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: join(shots, name + '.png') });
};
const signIn = async (who) => {
  await fill('Token', who);
  await press('Sign in with the token');
  await page.waitForSelector('nav.side', patience);
};
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const accessible = async (what) => {
  // By the protocol, which the policy of the page is not asked about.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }));
  assert.deepEqual(violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.target + ' ' + (n.failureSummary ?? '')).slice(0, 3).join('; ')}`), [], `${what} is not accessible`);
};

const list = '#/k/autobusi.group.cicd/v1alpha/jenkinsservices';
const object = (name, tab = '') => `#/o/autobusi.group.cicd/v1alpha/jenkinsservices/default/${name}${tab && '/' + tab}`;

const steps = {
  async 'a wrong token is refused, a right one signs in'() {
    await open();
    await see('Token');
    await accessible('the sign-in');
    await shot('sign-in');
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
    await page.waitForFunction(() => document.querySelector('tbody tr td a').textContent === 'build-3', patience);
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
    await shot('validation');
    await accessible('the form');
    await (await field('instanceamount')).fill('1');
    await press('Create');
    await see('JenkinsService made was created.');
    assert.equal(kubectl(['get', 'js', 'made', '-o', 'jsonpath={.spec.instanceamount}']), '1');
  },
  async 'an edit as YAML names the line of a mistake, and is applied when it is right'() {
    await at(object('made', 'edit'));
    await press('YAML');
    const text = () => page.$eval('textarea[aria-label=YAML]', (e) => e.value);
    const type = (t) => page.locator('textarea[aria-label=YAML]').fill(t);
    const before = await text();
    await type(before.replace('instanceamount: 1', 'instanceamount: 77'));
    await press('Save');
    await page.waitForSelector('.causes button', patience);
    const line = before.split('\n').findIndex((l) => l.includes('instanceamount')) + 1;
    assert.equal(await page.$eval('.causes button', (e) => e.textContent), `line ${line}`);
    await type(before.replace('instancecpu: 1', 'instancecpu: ['));
    await page.waitForFunction(() => [...document.querySelectorAll('button')].find((b) => b.textContent.trim() === 'Save').disabled, patience);
    await type(before.replace('instancecpu: 1', 'instancecpu: 2'));
    await press('Save');
    await see('was saved');
    const managers = JSON.parse(kubectl(['get', 'js', 'made', '-o', 'json', '--show-managed-fields'])).metadata.managedFields;
    assert.ok(managers.some((m) => m.manager === 'annex-console' && m.operation === 'Apply' && JSON.stringify(m.fieldsV1).includes('f:instancecpu')), JSON.stringify(managers));
  },
  async 'what another manages is a conflict, and can be taken over'() {
    kubectl(['apply', '--server-side', '--field-manager=pipeline', '--force-conflicts', '-f', '-'], service('made', { instanceamount: 2, instancecpu: 3 }));
    await at(object('made'));
    await see('instancecpu: 3', 'pre');
    await at(object('made', 'edit'));
    await (await field('instancecpu')).fill('1');
    await press('Save');
    await see('pipeline', '.problem');
    await see('.spec.instancecpu', '.problem');
    assert.equal(kubectl(['get', 'js', 'made', '-o', 'jsonpath={.spec.instancecpu}']), '3');
    await shot('conflict');
    await press('Take over');
    await page.waitForFunction(() => !document.querySelector('.problem'), patience);
    await see('was saved');
    assert.equal(kubectl(['get', 'js', 'made', '-o', 'jsonpath={.spec.instancecpu}']), '1');
  },
  async 'an edit that takes a field away of another manager does so'() {
    kubectl(['label', 'js', 'made', 'team=a', 'tier=b']);
    await at(object('made', 'edit'));
    await press('YAML');
    await page.waitForFunction(() => document.querySelector('textarea[aria-label=YAML]').value.includes('tier: b'), patience);
    const text = await page.$eval('textarea[aria-label=YAML]', (e) => e.value);
    await page.locator('textarea[aria-label=YAML]').fill(text.replace(/ *tier: b\n/, ''));
    await press('Save');
    await see('was saved');
    assert.equal(kubectl(['get', 'js', 'made', '-o', 'jsonpath={.metadata.labels}']), '{"team":"a"}');
  },
  async 'an action is a button with a form, and changes what the page shows'() {
    await at(object('made'));
    await press('approval');
    await page.waitForSelector('dialog select, dialog input', patience);
    await accessible('the dialog');
    const select = await page.$('dialog .form select');
    if (select) await select.select('Approved');
    else await page.type('dialog .form input', 'Approved');
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
    await shot('terminal');
    await page.type('.xterm-helper-textarea', 'exit 7\n');
    await see('exit status 7');
  },
  async 'owners are a graph'() {
    const uid = kubectl(['get', 'js', 'made', '-o', 'jsonpath={.metadata.uid}']);
    kubectl(['apply', '-f', '-'], service('child', { instanceamount: 1, instancecpu: 1 }, { ownerReferences: [{ apiVersion: 'autobusi.group.cicd/v1alpha', kind: 'JenkinsService', name: 'made', uid }] }));
    await at(object('made', 'owners'));
    await page.waitForFunction(() => document.querySelectorAll('svg .node').length === 2 && document.querySelectorAll('svg .edge').length === 1, patience);
    await accessible('the graph');
  },
  async 'strings of objects are text, whatever they are'() {
    const evil = `<img src=x onerror="console.log('XSS img')"><script>console.log('XSS script')</script>"'>{{7*7}}\${7*7}javascript:alert(1)`;
    kubectl(['apply', '-f', '-'], service('evil', { instanceamount: 1, instancecpu: 1 }, { annotations: { evil, 'a.b/constructor': evil }, finalizers: ['example.com/x'] }));
    kubectl(['patch', 'js', 'evil', '--subresource=status', '--type=merge', '-p', JSON.stringify({ status: { message: evil, conditions: [{ type: evil, status: 'True', reason: evil, message: evil }] } })]);
    for (const hash of [list, object('evil'), object('evil', 'edit'), object('evil', 'owners'), '#/' + encodeURIComponent(evil), `#/k/core/v1/${encodeURIComponent(evil)}`, `#/o/core/v1/namespaces/-/${encodeURIComponent(evil)}`]) {
      await at(hash);
      await new Promise((r) => setTimeout(r, 400));
    }
    await at(object('evil'));
    await see('<script>', 'pre');
    await at(object('evil', 'edit'));
    await press('YAML');
    assert.equal(await page.evaluate(() => document.querySelectorAll('#app script, #app img, #app iframe, #app [onerror]').length), 0);
    assert.equal(await page.evaluate(() => ({}).polluted), undefined);
  },
  async 'deletion asks first, and says how it goes on'() {
    await at(object('build-1'));
    await press('Delete');
    await page.waitForSelector('dialog', patience);
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
    await shot('dark');
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
    assert.equal(await ground(), light);
    await accessible('the table');
    await shot('table');
  },
  async 'a user with few rights is offered what it may do'() {
    kubectl(['create', 'role', 'looker', '--verb=get,list,watch', '--resource=jenkinsservices.autobusi.group.cicd', '-n', 'default']);
    kubectl(['create', 'rolebinding', 'looker', '--role=looker', '--user=vic', '-n', 'default']);
    await open();
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
    await open();
    await signIn(token.ada);
    await page.goto(base + '/swagger-ui/#apis/autobusi.group.cicd/v1alpha', { waitUntil: 'domcontentloaded' });
    await see('autobusi', '#swagger');
    await page.locator('.opblock-tag').click();
    await see('/apis/autobusi.group.cicd/v1alpha/namespaces/{namespace}/jenkinsservices', '#swagger');
    await page.locator('#operations-autobusiGroupCicd_v1alpha-listAutobusiGroupCicdV1alphaJenkinsServiceForAllNamespaces .opblock-summary-control, .opblock-get .opblock-summary-control').click();
    await page.locator('.try-out__btn').click();
    await page.locator('.execute').click();
    await page.waitForFunction(() => document.querySelector('.live-responses-table tbody .response-col_status')?.innerText.startsWith('200'), patience);
    await shot('swagger-ui');
  },
};

let failed = 0;
try {
  for (const [name, run] of Object.entries(steps)) {
    const begun = Date.now();
    try {
      await run();
      assert.deepEqual(wrong.splice(0), [], 'what the browser complains of');
      console.log(`ok    ${name} (${Date.now() - begun} ms)`);
    } catch (error) {
      failed++;
      console.log(`FAIL  ${name}\n${error instanceof Error ? error.message : error}\n`);
      await shot('failed-' + failed);
      if (!page) break;
    }
  }
} finally {
  await browser.close();
  running.kill('SIGINT');
  await new Promise((r) => (running.exitCode !== null ? r() : running.on('exit', r)));
  rmSync(dir, { recursive: true, force: true });
}
console.log(failed ? `${failed} of ${Object.keys(steps).length} steps failed` : `${Object.keys(steps).length} steps in ${await browserName()}`);
process.exit(failed ? 1 : 0);

async function browserName() {
  return execFileSync(chromium, ['--version'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
}
