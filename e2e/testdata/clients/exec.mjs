// Runs commands in a pod with the JavaScript client of Kubernetes, unmodified, and says how each
// ended as a line of JSON.
import { Exec, KubeConfig } from '@kubernetes/client-node';
import { PassThrough, Readable } from 'node:stream';

const config = new KubeConfig();
config.loadFromFile(process.argv[2]);
const exec = new Exec(config);

async function run(command, stdin) {
  const stdout = new PassThrough();
  const stderr = new PassThrough();
  const said = { stdout: [], stderr: [] };
  stdout.on('data', (data) => said.stdout.push(data));
  stderr.on('data', (data) => said.stderr.push(data));
  const status = await new Promise((resolve, reject) => {
    exec.exec('default', 'p', 'main', command, stdout, stderr, stdin ?? null, false, resolve).catch(reject);
  });
  const code = status.details?.causes?.find((cause) => cause.reason === 'ExitCode')?.message;
  return {
    stdout: Buffer.concat(said.stdout).toString(),
    stderr: Buffer.concat(said.stderr).toString(),
    status: status.status,
    code: code === undefined ? 0 : Number(code),
  };
}

for (const [command, stdin] of [
  [['sh', '-c', 'echo out; echo err >&2']],
  [['sh', '-c', 'exit 7']],
  [['wc', '-c'], Readable.from([Buffer.alloc(1 << 20, 'x'), Buffer.from('end')])],
]) {
  console.log(JSON.stringify(await run(command, stdin)));
}
