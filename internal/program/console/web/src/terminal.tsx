// A command in an object, in a terminal: the protocol of kubectl exec over a WebSocket.

import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { currentToken, type Resource, type Status } from './api';
import type { Described } from './copyas';
import { CopyAs } from './copymenu';
import { type Kind, pathOf, resourceOf } from './discovery';
import { containersOf } from './logs';

// A browser cannot add headers to a WebSocket, and so the token goes as Kubernetes' subprotocol.
function protocols(): string[] {
  const token = currentToken();
  if (!token) return ['v5.channel.k8s.io'];
  const encoded = btoa(String.fromCharCode(...new TextEncoder().encode(token)))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '');
  return ['v5.channel.k8s.io', 'base64url.bearer.authorization.k8s.io.' + encoded];
}

const stdin = 0;
const stdout = 1;
const stderr = 2;
const failure = 3;
const resize = 4;

// words splits a command line at spaces, but for what is quoted.
export function words(line: string): string[] {
  return [...line.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map((m) => m[1] ?? m[2] ?? m[3] ?? '');
}

// describe is a command with a terminal, as it is sent and as kubectl has it.
function describe(kind: Kind, namespace: string, name: string, command: string[], container: string): Described {
  const query = [...command.map((word) => ['command', word]), ...['stdin', 'stdout', 'tty'].map((flag) => [flag, 'true'])] as [string, string][];
  if (container) query.push(['container', container]);
  const isPod = kind.group === '' && kind.resource === 'pods';
  const type = resourceOf(kind);
  const flags = ['--stdin', '--tty', ...(kind.namespaced ? [`--namespace=${namespace}`] : []), ...(container ? [`--container=${container}`] : [])];
  return { method: 'GET', path: pathOf(kind, namespace, name, 'exec'), query, stream: true, words: [...(isPod ? [] : ['annex']), 'exec', ...flags, `${type}/${name}`, '--', ...command] };
}

export function Terminal({ kind, namespace, name, object }: { kind: Kind; namespace: string; name: string; object: Resource }) {
  const [command, setCommand] = useState('sh');
  const [container, setContainer] = useState('');
  const [round, setRound] = useState(0);
  const [state, setState] = useState('');
  const host = useRef<HTMLDivElement>(null);
  const id = useId();
  const described = () => describe(kind, namespace, name, words(command), container.trim());
  useEffect(() => {
    if (round === 0 || !host.current) return;
    const box = host.current;
    let closed = false;
    let end = () => {};
    setState('connecting');
    void (async () => {
      const [{ Terminal: Xterm }, { FitAddon }, { adoptStyles }] = await Promise.all([import('@xterm/xterm'), import('@xterm/addon-fit'), import('./sheets')]);
      if (closed) return;
      adoptStyles();
      const styles = getComputedStyle(document.documentElement);
      const terminal = new Xterm({
        fontSize: 13,
        fontFamily: styles.getPropertyValue('--mono').trim(),
        cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches,
        screenReaderMode: true,
        scrollback: 5000,
        theme: { background: '#14171c', foreground: '#d8dee6', cursor: '#d8dee6' },
      });
      const fit = new FitAddon();
      terminal.loadAddon(fit);
      terminal.open(box);
      fit.fit();
      const asked = described();
      const socket = new WebSocket(`${location.origin.replace(/^http/, 'ws')}${asked.path}?${new URLSearchParams(asked.query)}`, protocols());
      socket.binaryType = 'arraybuffer';
      const send = (channel: number, data: Uint8Array) => {
        if (socket.readyState !== WebSocket.OPEN) return;
        const message = new Uint8Array(data.length + 1);
        message[0] = channel;
        message.set(data, 1);
        socket.send(message);
      };
      const encoder = new TextEncoder();
      const size = () => send(resize, encoder.encode(JSON.stringify({ Width: terminal.cols, Height: terminal.rows })));
      let said = '';
      socket.onopen = () => {
        setState('connected');
        size();
        terminal.focus();
      };
      socket.onmessage = (e: MessageEvent<ArrayBuffer | string>) => {
        const bytes = typeof e.data === 'string' ? encoder.encode(e.data) : new Uint8Array(e.data);
        const data = bytes.subarray(1);
        if (bytes[0] === stdout || bytes[0] === stderr) terminal.write(data);
        if (bytes[0] === failure) {
          const status = JSON.parse(new TextDecoder().decode(data)) as Status;
          said = status.status === 'Success' ? 'ended' : (status.message ?? 'failed');
        }
      };
      socket.onclose = () => {
        if (!closed) setState(said || 'closed: the server did not accept the connection, or ended it');
        terminal.options.disableStdin = true;
      };
      terminal.onData((text) => send(stdin, encoder.encode(text)));
      terminal.onResize(size);
      const watching = new ResizeObserver(() => fit.fit());
      watching.observe(box);
      end = () => {
        watching.disconnect();
        socket.close();
        terminal.dispose();
      };
    })();
    return () => {
      closed = true;
      end();
    };
  }, [round]);
  return (
    <>
      <form
        class="tools"
        onSubmit={(e) => {
          e.preventDefault();
          setRound((r) => r + 1);
        }}
      >
        <label>
          Command <input value={command} required onInput={(e) => setCommand(e.currentTarget.value)} />
        </label>
        <label>
          Container <input value={container} size={10} list={id} onInput={(e) => setContainer(e.currentTarget.value)} />
          <datalist id={id}>
            {containersOf(object).map((c) => (
              <option key={c} value={c} />
            ))}
          </datalist>
        </label>
        <button type="submit" class="primary">
          {round ? 'Run again' : 'Run'}
        </button>
        <CopyAs describe={described} />
        <span class="gap" />
        <span class="quiet" role="status">
          {state}
        </span>
      </form>
      {round > 0 && <div class="tty" ref={host} key={round} />}
    </>
  );
}
