// Signing in at the console, and what becomes of a page whose sign-in ends, whose server restarts or whose network is gone,
// in a headless Chromium. make console-test runs it.
//
//   node signin.mjs FOLDER [folder for screenshots]
//
// FOLDER has the programs annex and kubectl.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { begin } from './looks.mjs';
import { accessible, at, byPassword, dir, field, fill, looked, open, page, patience, press, programs, run, saved, see } from './shared.mjs';

const home = join(dir, 'signin');
const data = join(home, 'data');
mkdirSync(join(home, 'tmp'), { recursive: true });
const env = { ...process.env, HOME: home, TMPDIR: join(home, 'tmp'), KUBECONFIG: '' };
const annex = (...args) => execFileSync(join(programs, 'annex'), args, { cwd: home, env, encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'] });
const kubectl = (args, input) => execFileSync(join(programs, 'kubectl'), ['--kubeconfig', join(data, 'kubeconfig'), ...args], { input, encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'] });

// The server, which is started again at the same port.
let server = { port: '0' };
async function start(...more) {
  const begun = await begin(join(programs, 'annex'), ['serve', '--data-dir', data, '--secure-port', server.port, '--login-token-lifetime', '10s', ...more], { cwd: home, env });
  server = { ...begun, port: new URL(begun.base).port, link: begun.printed().match(/^sign in: (https:\S+) /m)?.[1] ?? '' };
}

const setPassword = (name) => execFileSync(join(programs, 'annex'), ['user', 'passwd', name, '--data-dir', data], { input: 'correct horse battery\n', env, stdio: ['pipe', 'pipe', 'pipe'] });
mkdirSync(data, { recursive: true });
setPassword('grace');
await start('--console-link');
kubectl(['create', 'clusterrole', 'reader', '--verb=get,list,watch,create,patch', '--resource=configmaps,namespaces']);
kubectl(['create', 'clusterrolebinding', 'grace', '--clusterrole=reader', '--user=grace']);

const linkOf = (url) => url.slice(server.base.length);
const maps = '#/k/core/v1/configmaps?ns=default';
const live = () => page.waitForSelector('.live.live', patience);
const hash = () => page.evaluate(() => location.hash);
const name = () => 'm-' + Math.random().toString(36).slice(2, 9);
// shown creates an object and sees it in the table: the stream works.
const shown = async () => {
  const made = name();
  kubectl(['create', 'configmap', made]);
  await see(made, 'tbody');
};
const againAs = async (who) => {
  await page.waitForSelector('dialog.again[open]', patience);
  await byPassword(who, 'correct horse battery');
  await page.waitForFunction(() => !document.querySelector('dialog.again'), patience);
};

const steps = {
  async 'the link of the start signs the administrator in, and leaves no secret in the address'() {
    assert.match(server.printed(), /works once, for 5m; another: annex console --open/);
    const answers = [];
    await open('/console/licenses.txt', server);
    page.on('response', (r) => answers.push(r.url().split('#')[0]));
    await page.goto(server.link, { waitUntil: 'domcontentloaded' });
    await see('annex-admin', '.user');
    assert.equal(await hash(), '#/');
    const secret = server.link.split('/').at(-1);
    assert.ok(secret.length > 40 && !answers.some((u) => u.includes(secret)), 'a URL of a request has the secret');
    assert.ok(!server.log().includes(secret), 'the log has the secret');
    assert.equal(await page.evaluate(() => document.cookie), '');
    await page.reload();
    await see('annex-admin', '.user');
  },
  async 'a link that was used says so, and how to get another'() {
    await open(linkOf(server.link), server);
    await see('was used before', '[role=alert]');
    await see('annex console', '[role=alert]');
    await looked('link-used');
    // In the open tab, only the fragment changes.
    const another = annex('console', '--data-dir', data).trim();
    await at(another.slice(another.indexOf('#')));
    await see('annex-admin', '.user');
  },
  async 'a link of a user has the rights of the user'() {
    const kubeconfig = join(home, 'jane.kubeconfig');
    annex('user', 'create', 'jane', '--data-dir', data, '--to', kubeconfig);
    await open(linkOf(annex('console', '--kubeconfig', kubeconfig).trim()), server);
    await see('jane', '.user');
    await see('There is nothing here that you may list');
  },
  async 'a user whose certificate is revoked sees the sign-in'() {
    annex('user', 'revoke', 'jane', '--data-dir', data);
    await page.waitForFunction(async () => {
      location.hash = '#/' + (location.hash === '#/' ? 'k/core/v1/configmaps' : '');
      return document.querySelector('dialog.again[open]');
    }, { ...patience, polling: 500 });
    await see('Your session has ended', 'dialog');
  },
  async 'addresses that people type lead to the pages'() {
    for (const [from, to] of [['/', '/console/'], ['/console', '/console/'], ['/docs', '/swagger-ui/'], ['/swagger-ui', '/swagger-ui/']]) {
      await open(from, server);
      await page.waitForFunction((want) => location.pathname === want, patience, to);
    }
    assert.match(kubectl(['get', '--raw', '/']), /"paths"/);
  },
  async 'tokens that expire are renewed: the table stays live'() {
    await open('/console/' + maps, server);
    await byPassword('grace', 'correct horse battery');
    await live();
    // Longer than a token lives; the server ends the stream then.
    await new Promise((r) => setTimeout(r, 16_000));
    await live();
    await shown();
    assert.equal(await page.$('dialog.again'), null);
  },
  async 'a session that ends leads to the sign-in, and back to the same place'() {
    setPassword('grace'); // a new password ends the sessions of the old one
    await page.waitForSelector('dialog.again[open]', { timeout: 30_000 });
    await looked('ended');
    await againAs('grace');
    assert.equal(await hash(), maps);
    await live();
    await shown();
  },
  async 'a save in the middle of which the session ends is carried out after the sign-in'() {
    await at('#/new/core/v1/configmaps?ns=default');
    await (await field('name')).fill('typed-before');
    annex('user', 'disable', 'grace', '--data-dir', data);
    await page.waitForFunction(async () => (await fetch('/api/v1/namespaces', { headers: { Authorization: 'Bearer x' } })).status === 401, patience);
    await press('Create');
    await page.waitForSelector('dialog.again[open]', patience);
    setPassword('grace');
    await againAs('grace');
    await page.waitForFunction(() => location.hash.includes('typed-before') || document.body.innerText.includes('typed-before was created'), patience);
    assert.match(kubectl(['get', 'configmap', 'typed-before', '-o', 'name']), /typed-before/);
  },
  async 'a quiet page is connected again after the server has restarted'() {
    await at(maps);
    await live();
    await server.stop();
    await page.waitForSelector('.live.broken', { timeout: 30_000 });
    await start();
    assert.equal(server.link, ''); // standard output is no terminal
    await page.waitForSelector('.live.live', { timeout: 40_000 });
    assert.equal(await page.$('dialog.again'), null);
    await shown();
  },
  async 'an edit outlives a restart, and its page follows the object again'() {
    kubectl(['create', 'configmap', 'edited', '--from-literal=word=old']);
    await at('#/o/core/v1/configmaps/default/edited/edit');
    await (await field('word')).fill('typed before the restart');
    await server.stop();
    await start();
    kubectl(['annotate', 'configmap', 'edited', 'by=another']);
    await see('Others have changed metadata.annotations', 'main');
    await saved();
    assert.equal(kubectl(['get', 'configmap', 'edited', '-o', 'jsonpath={.data.word} {.metadata.annotations.by}']), 'typed before the restart another');
    await at(maps);
    await live();
  },
  async 'a network that is cut for a minute comes back'() {
    const client = await page.createCDPSession();
    const offline = (is) => client.send('Network.emulateNetworkConditions', { offline: is, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
    await client.send('Network.enable');
    await offline(true);
    const missed = name();
    kubectl(['create', 'configmap', missed]);
    await new Promise((r) => setTimeout(r, Number(process.env.CUT ?? 60_000)));
    await offline(false);
    await page.waitForFunction((t) => document.querySelector('tbody')?.textContent.includes(t), { timeout: 20_000 }, missed);
    await live();
    await shown();
  },
  async 'rights that are withdrawn are shown as such'() {
    kubectl(['delete', 'clusterrolebinding', 'grace']);
    await see('forbidden', '[role=alert]');
    assert.equal(await page.$('dialog.again'), null, 'withdrawn rights have signed the user out');
    await see('grace', '.user');
    await looked('withdrawn');
  },
  async 'administrators see the requests of the server, and why some were refused'() {
    await open(linkOf(annex('console', '--data-dir', data).trim()), server);
    await see('annex-admin', '.user');
    await press('Requests', 'link');
    await see('grace', 'tbody');
    await page.locator('::-p-text(refused only)').click();
    await page.waitForFunction(() => location.hash.includes('refused=true') && [...document.querySelectorAll('tbody tr')].every((r) => r.querySelector('.bad')), patience);
    await see('Forbidden', 'tbody');
    await fill('Kind', 'configmaps');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash.includes('resource=configmaps'), patience);
    await press('Pause');
    await see('paused');
    await accessible('the requests');
    await page.setViewport({ width: 390, height: 800 });
    await accessible('the requests on a narrow screen');
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'the page is wider than the screen');
    await page.setViewport({ width: 1280, height: 800 });
    await press('Copy as …');
    await see("kubectl get '--raw=/debug/requests?resource=configmaps&refused=true'", 'dialog');
    await accessible('the texts of a request');
    await press('Close');
    await page.reload(); // the filter is in the address
    await see('Forbidden', 'tbody');
  },
  async 'signing out ends the session'() {
    await press('Sign out');
    await see('Sign in');
    await page.reload();
    await see('Sign in');
    await server.stop();
  },
};

await run(steps);
