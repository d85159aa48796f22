package plugin

// Annotations of a command for a subresource: its own flags, the flags of the fields, and a title for these.
const (
	flagsOf     = "flags"
	fieldsOf    = "fields"
	fieldsTitle = "title"
)

// usageOfRoot includes the flags of all verbs.
const usageOfRoot = `Usage:
  {{.CommandPath}} [VERB] [KIND/NAME] [flags]{{if .HasExample}}

Examples:
{{.Example}}{{end}}

Verbs:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
`

// usageOfVerb omits the flags of all verbs, which the root shows.
const usageOfVerb = `Usage:
  {{.UseLine}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .Annotations.fields}}

{{.Annotations.title}}:
{{.Annotations.fields | trimTrailingWhitespaces}}{{end}}

Flags:
{{if .Annotations.flags}}{{.Annotations.flags | trimTrailingWhitespaces}}{{else}}{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

{{.Root.CommandPath}} --help lists the flags of all verbs.
`
