// A request of the console as text for others: kubectl, curl, Go and TypeScript. Every text quotes what comes from objects
// and addresses, which anyone may have named. None has a token of the user.

import { apiVersion, type Kind, resourceOf } from './discovery';

export interface Described {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  path: string;
  query?: [string, string][];
  body?: unknown;
  contentType?: string;
  words?: string[]; // the words after kubectl, where a verb of it or of its plugin makes this request
  stream?: boolean; // a connection that carries a command
  // The object or the collection, where kubectl has a verb for the request.
  of?: { kind: Kind; namespace?: string; name?: string; verb: 'get' | 'list' | 'create' | 'apply' | 'patch' | 'delete' };
}

export type Language = 'kubectl' | 'curl' | 'Go' | 'TypeScript';
export const languages: Language[] = ['kubectl', 'curl', 'Go', 'TypeScript'];

const applyType = 'application/apply-patch+yaml';
const typeOf = (d: Described) => d.contentType ?? 'application/json';
// plain is a text without what no program takes as an argument: zero bytes, and halves of characters.
const plain = (text: string) => text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd').replaceAll('\0', '');

// word is a text as one word of a POSIX shell.
export function word(text: string): string {
  const t = plain(text);
  return /^[\w@%+:,./=-]+$/.test(t) ? t : `'${t.replaceAll("'", `'\\''`)}'`;
}

// literal is a text as a string of Go, and of TypeScript.
export function literal(text: string): string {
  return JSON.stringify(plain(text)).replace(/[\u007f-\u009f\u2028\u2029]/g, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

const json = (body: unknown) => plain(typeof body === 'string' ? body : JSON.stringify(body, null, 2));

// here is a document as the input of a command. No line of it ends it early.
function here(command: string, body: unknown): string {
  const text = json(body).replaceAll('\r\n', '\n');
  let end = 'EOF';
  while (text.split('\n').includes(end)) end += '_';
  return `${command} <<'${end}'\n${text}\n${end}\n`;
}

const encoded = (d: Described) => {
  const q = new URLSearchParams(d.query);
  return d.path + (q.size ? '?' + q : '');
};
const parameter = (d: Described, name: string) => d.query?.find(([n]) => n === name)?.[1];
// Parameters that the verbs of kubectl have flags for.
const flags: Record<string, string> = { labelSelector: 'selector', fieldSelector: 'field-selector', fieldManager: 'field-manager', limit: 'chunk-size', dryRun: 'dry-run', fieldValidation: 'validate' };
const known = (d: Described) => (d.query ?? []).every(([n]) => n in flags || n === 'force' || n === 'propagationPolicy');

function kubectlFlags(d: Described): string[] {
  return (d.query ?? []).flatMap(([name, value]) => {
    if (name === 'force') return value === 'true' ? ['--force-conflicts'] : [];
    if (name === 'propagationPolicy') return [`--cascade=${value.toLowerCase()}`];
    if (name === 'dryRun') return ['--dry-run=server'];
    if (name === 'fieldValidation') return [`--validate=${value.toLowerCase()}`];
    return [`--${flags[name]}=${value}`];
  });
}

function kubectl(d: Described): string {
  const command = (...args: string[]) => ['kubectl', ...args].map(word).join(' ');
  const { of } = d;
  if (d.words) return command(...d.words) + '\n';
  if (of && known(d)) {
    const type = resourceOf(of.kind);
    const where = !of.kind.namespaced ? [] : of.namespace ? [`--namespace=${of.namespace}`] : of.verb === 'list' ? ['--all-namespaces'] : [];
    const more = kubectlFlags(d);
    const named = of.name?.startsWith('-') ? ['--', type, of.name] : undefined; // what begins with a dash is no flag there
    const object = (verb: string, ...rest: string[]) => command(verb, ...(named ? [] : [type, of.name ?? '']), ...where, ...more, ...rest, ...(named ?? []));
    switch (of.verb) {
      case 'list':
        return command('get', type, ...where, ...more) + '\n';
      case 'get':
        return object('get', '--output=yaml') + '\n';
      case 'delete':
        return object('delete') + '\n';
      case 'create':
        return here(command('create', ...where, ...more, '--filename=-'), d.body);
      case 'apply':
        return here(command('apply', '--server-side', ...where, ...more, '--filename=-'), d.body);
      case 'patch':
        return object('patch', `--type=${typeOf(d).includes('json-patch') ? 'json' : typeOf(d).includes('strategic') ? 'strategic' : 'merge'}`, `--patch=${json(d.body)}`) + '\n';
    }
  }
  const path = encoded(d);
  switch (d.method) {
    case 'GET':
      return command('get', `--raw=${path}`) + '\n';
    case 'POST':
      return here(command('create', `--raw=${path}`, '--filename=-'), d.body ?? {});
    case 'PUT':
      return here(command('replace', `--raw=${path}`, '--filename=-'), d.body);
    case 'DELETE':
      return command('delete', `--raw=${path}`) + '\n';
    case 'PATCH':
      return '# kubectl has no verb for this request: use curl\n';
  }
}

const note = '# TOKEN is a bearer token, CA the file of the authority of the server: cert/ca.crt of its data directory.\n';

function curl(d: Described, origin: string): string {
  if (d.stream) return '# curl cannot carry the input and the output of a command: use kubectl\n';
  const lines = [`curl --fail-with-body --cacert "$CA" --request ${d.method}`, `--header "Authorization: Bearer $TOKEN"`];
  if (d.body !== undefined) lines.push(`--header ${word('Content-Type: ' + typeOf(d))}`, '--data-binary @-');
  lines.push(word(origin + encoded(d)));
  const command = lines.join(' \\\n  ');
  return note + (d.body === undefined ? command + '\n' : here(command, d.body));
}

// raw is a text as a string of Go with as few escapes as it needs.
const raw = (text: string) => (/[`\r\ufeff]/.test(text) ? literal(text) : '`' + text + '`');

function go(d: Described): string {
  const { of } = d;
  const group = (imports: string[]) => imports.sort().map((i) => `\t${i.endsWith('/meta/v1') ? 'metav1 ' : ''}"${i}"`);
  const begin = (imports: string[]) => `package main

import (
${group(imports.filter((i) => !i.includes('.'))).join('\n')}

${group(imports.filter((i) => i.includes('.'))).join('\n')}
)

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", clientcmd.RecommendedHomeFile)
	if err != nil {
		log.Fatal(err)
	}
`;
  const fail = `	if err != nil {
		log.Fatal(err)
	}
`;
  if (d.stream)
    return `${begin(['context', 'log', 'os', 'k8s.io/client-go/tools/clientcmd', 'k8s.io/client-go/tools/remotecommand'])}	executor, err := remotecommand.NewWebSocketExecutor(config, ${literal(d.method)}, config.Host+${literal(encoded(d))})
${fail}	streams := remotecommand.StreamOptions{Stdin: os.Stdin, Stdout: os.Stdout, Tty: true}
	if err := executor.StreamWithContext(context.Background(), streams); err != nil {
		log.Fatal(err)
	}
}
`;
  const simple = of && known(d) && (of.verb !== 'patch' || !d.path.slice(d.path.lastIndexOf('/' + of.kind.resource + '/') + of.kind.resource.length + 2).includes('/'));
  if (!simple) {
    const body = d.body === undefined ? 'nil' : `strings.NewReader(${raw(json(d.body))})`;
    return `${begin(['context', 'fmt', 'io', 'log', 'net/http', ...(d.body === undefined ? [] : ['strings']), 'k8s.io/client-go/rest', 'k8s.io/client-go/tools/clientcmd'])}	client, err := rest.HTTPClientFor(config)
${fail}	request, err := http.NewRequestWithContext(context.Background(), ${literal(d.method)}, config.Host+${literal(encoded(d))}, ${body})
${fail}${d.body === undefined ? '' : `\trequest.Header.Set("Content-Type", ${literal(typeOf(d))})\n`}	response, err := client.Do(request)
${fail}	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
${fail}	fmt.Println(response.Status, string(answer))
}
`;
  }
  const { kind } = of;
  const options = (type: string) => {
    const set: string[] = [];
    const put = (name: string, field: string) => {
      const value = parameter(d, name);
      if (value !== undefined) set.push(`${field}: ${name === 'limit' ? String(Number(value) || 0) : name === 'dryRun' ? `[]string{${literal(value)}}` : literal(value)}`);
    };
    if (type === 'ListOptions') for (const [n, f] of [['labelSelector', 'LabelSelector'], ['fieldSelector', 'FieldSelector'], ['limit', 'Limit']] as const) put(n, f);
    if (type === 'CreateOptions' || type === 'PatchOptions') {
      for (const [n, f] of [['fieldManager', 'FieldManager'], ['fieldValidation', 'FieldValidation'], ['dryRun', 'DryRun']] as const) put(n, f);
      if (type === 'PatchOptions' && parameter(d, 'force') === 'true') set.push('Force: new(true)');
    }
    if (type === 'DeleteOptions') {
      const policy = parameter(d, 'propagationPolicy');
      if (policy) set.push(`PropagationPolicy: new(metav1.DeletionPropagation(${literal(policy)}))`);
    }
    return `metav1.${type}{${set.join(', ')}}`;
  };
  const patchType = typeOf(d) === applyType ? 'types.ApplyPatchType' : typeOf(d).includes('json-patch') ? 'types.JSONPatchType' : typeOf(d).includes('strategic') ? 'types.StrategicMergePatchType' : 'types.MergePatchType';
  const name = literal(of.name ?? '');
  const calls: Record<string, string> = {
    list: `List(ctx, ${options('ListOptions')})`,
    get: `Get(ctx, ${name}, ${options('GetOptions')})`,
    create: `Create(ctx, object, ${options('CreateOptions')})`,
    apply: `Patch(ctx, ${name}, ${patchType}, []byte(${raw(json(d.body ?? {}))}), ${options('PatchOptions')})`,
    patch: `Patch(ctx, ${name}, ${patchType}, []byte(${raw(json(d.body ?? {}))}), ${options('PatchOptions')})`,
    delete: `Delete(ctx, ${name}, ${options('DeleteOptions')})`,
  };
  const imports = ['context', 'log', 'k8s.io/apimachinery/pkg/apis/meta/v1', 'k8s.io/apimachinery/pkg/runtime/schema', 'k8s.io/client-go/dynamic', 'k8s.io/client-go/tools/clientcmd'];
  if (of.verb !== 'delete') imports.push('fmt');
  if (of.verb === 'create') imports.push('k8s.io/apimachinery/pkg/apis/meta/v1/unstructured');
  if (of.verb === 'apply' || of.verb === 'patch') imports.push('k8s.io/apimachinery/pkg/types');
  const inNamespace = kind.namespaced && of.namespace ? `.Namespace(${literal(of.namespace)})` : '';
  return `${begin(imports)}	client, err := dynamic.NewForConfig(config)
${fail}	ctx := context.Background()
	resource := schema.GroupVersionResource{Group: ${literal(kind.group)}, Version: ${literal(kind.version)}, Resource: ${literal(kind.resource)}}
${of.verb === 'create' ? `	object := &unstructured.Unstructured{}\n	if err := object.UnmarshalJSON([]byte(${raw(json(d.body))})); err != nil {\n		log.Fatal(err)\n	}\n` : ''}	${of.verb === 'delete' ? 'err = ' : 'answer, err := '}client.Resource(resource)${inNamespace}.${calls[of.verb]}
${fail}${of.verb === 'delete' ? '' : '	fmt.Println(answer)\n'}}
`;
}

function typescript(d: Described, origin: string): string {
  if (d.stream)
    return `// token is a bearer token. The first byte of a message is its channel: 0 is input, 1 and 2 are output, 3 is the status of the end.
const bearer = 'base64url.bearer.authorization.k8s.io.' + Buffer.from(token).toString('base64url');
const socket = new WebSocket(${literal(origin.replace(/^http/, 'ws') + encoded(d))}, ['v5.channel.k8s.io', bearer]);
socket.binaryType = 'arraybuffer';
socket.onmessage = ({ data }) => process.stdout.write(new Uint8Array(data).subarray(1));
`;
  const text = d.body === undefined ? '' : json(d.body);
  // In a literal, this name would be the prototype.
  const value = typeof d.body === 'string' || text.includes('__proto__') ? literal(text) : `JSON.stringify(${text.replace(/[\u2028\u2029]/g, (c) => '\\u' + c.charCodeAt(0).toString(16)).replaceAll('\n', '\n  ')})`;
  const body = d.body === undefined ? '' : `\n  body: ${value},`;
  const type = d.body === undefined ? '' : `, 'Content-Type': ${literal(typeOf(d))}`;
  return `// token is a bearer token; Node knows the authority of the server by NODE_EXTRA_CA_CERTS.
const response = await fetch(${literal(origin + encoded(d))}, {
  method: ${literal(d.method)},
  headers: { Authorization: \`Bearer \${token}\`, Accept: 'application/json'${type} },${body}
});
if (!response.ok) throw new Error(\`\${response.status}: \${await response.text()}\`);
const answer = await response.json();
`;
}

export function textOf(d: Described, language: Language, origin: string): string {
  switch (language) {
    case 'kubectl':
      return kubectl(d);
    case 'curl':
      return curl(d, origin);
    case 'Go':
      return go(d);
    case 'TypeScript':
      return typescript(d, origin);
  }
}

export const applied = (kind: Kind, name: string, body: object) => ({ apiVersion: apiVersion(kind), kind: kind.kind, ...body, metadata: { name, ...(body as { metadata?: object }).metadata } });
