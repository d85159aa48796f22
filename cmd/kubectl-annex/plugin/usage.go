package plugin

// Annotations of a command that is made of a subresource: its own flags, those of the
// fields, and what these are of.
const (
	flagsOf     = "flags"
	fieldsOf    = "fields"
	fieldsTitle = "title"
)

// usageOfRoot shows the flags of all verbs.
const usageOfRoot = `Usage:
  {{.CommandPath}} [VERB] [KIND/NAME] [flags]{{if .HasExample}}

Examples:
{{.Example}}{{end}}

Verbs:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
`

// usageOfVerb leaves the flags of all verbs to the root's.
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
