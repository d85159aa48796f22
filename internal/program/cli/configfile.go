package cli

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const configFlag = "config"

// notInFile lists flags that a configuration file cannot set.
var notInFile = []string{configFlag, "help"}

// configFileFlag declares the flag that names the file for readConfig.
func configFileFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, configFlag, "", "YAML file with flags of serve by name, and lists for repeated flags; flags on the command "+
		"line take precedence")
}

// readConfig sets flags from a YAML file that maps their names to values. Flags given on the command line take
// precedence. Flags of serve that the verb does not have are set in beside, which may be nil. It returns all
// mistakes in the file as one line, each with its position.
func readConfig(flags, beside *pflag.FlagSet, file string) error {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return usage(fmt.Errorf("--%s: %w", configFlag, err))
	}
	if err := setFlags(flags, beside, data); err != nil {
		return usage(fmt.Errorf("--%s %s: %w", configFlag, file, err))
	}
	return nil
}

func setFlags(flags, beside *pflag.FlagSet, data []byte) error {
	root, err := parseConfig(data)
	if err != nil || root == nil {
		return err
	}
	// The key is the value, since -v has two names.
	given := map[pflag.Value]bool{}
	flags.Visit(func(f *pflag.Flag) { given[f.Value] = true })
	lines := map[string]int{}
	var mistakes []string
	for i := 0; i < len(root.Content); i += 2 {
		name, value := root.Content[i].Value, follow(root.Content[i+1])
		mistake := func(format string, args ...any) {
			mistakes = append(mistakes, fmt.Sprintf("line %d: %s: ", root.Content[i].Line, name)+fmt.Sprintf(format, args...))
		}
		f, to := flags.Lookup(name), flags
		if f == nil && beside != nil {
			f, to = beside.Lookup(name), beside
		}
		if f == nil || slices.Contains(notInFile, name) {
			mistake("unknown flag, or a flag that the file cannot set")
			continue
		}
		if line, twice := lines[name]; twice {
			mistake("it is in line %d, too", line)
			continue
		}
		lines[name] = root.Content[i].Line
		texts, err := flagTexts(f, value)
		if err != nil {
			mistake("%v", err)
			continue
		}
		if given[f.Value] {
			continue
		}
		for _, text := range texts {
			if err := to.Set(name, text); err != nil {
				mistake("%v", errors.Unwrap(err)) // without pflag's prefix, which repeats the flag and the value
				break
			}
		}
	}
	if len(mistakes) > 0 {
		return errors.New(strings.Join(mistakes, "; "))
	}
	return nil
}

// parseConfig returns the top-level mapping of a file; nil if the file is empty.
func parseConfig(data []byte) (*yaml.Node, error) {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := documents.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: "))
	}
	if err := documents.Decode(&second); err == nil {
		return nil, fmt.Errorf("line %d: the file must have only one document", second.Line)
	}
	root := follow(document.Content[0])
	switch {
	case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
		return nil, nil
	case root.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("line %d: got %s, want a map from flag names to values", root.Line, described(root))
	}
	return root, nil
}

func follow(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// flagTexts returns the texts to set a flag to, in order, for one value of a file.
func flagTexts(f *pflag.Flag, value *yaml.Node) ([]string, error) {
	wrong := func(want string) error { return fmt.Errorf("got %s, want %s", described(value), want) }
	switch f.Value.Type() {
	case "bool":
		return scalar(value, "!!bool", wrong("true or false"))
	case "int", "int32", "int64":
		return scalar(value, "!!int", wrong("a whole number"))
	case "float32", "float64":
		if value.Tag == "!!int" {
			return scalar(value, "!!int", nil)
		}
		return scalar(value, "!!float", wrong("a number"))
	case "quantity":
		if value.Tag == "!!int" {
			return scalar(value, "!!int", nil)
		}
		return scalar(value, "!!str", wrong("a quantity such as 512Mi"))
	case "stringSlice", "stringArray", "int32Slice", "namedCertKey":
		return listTexts(f.Value.Type(), value, wrong("a list"))
	case "stringToString":
		return mapTexts(value, "!!str", "a text", wrong("a mapping"))
	case "mapStringBool", "mapStringString": // upstream's maps with boolean values
		return mapTexts(value, "!!bool", "true or false", wrong("a mapping"))
	case "duration":
		return scalar(value, "!!str", wrong("a duration such as 30s"))
	}
	return scalar(value, "!!str", wrong("a text"))
}

func scalar(value *yaml.Node, tag string, wrong error) ([]string, error) {
	if value.Kind != yaml.ScalarNode || value.Tag != tag {
		return nil, wrong
	}
	if tag == "!!bool" { // flags parse true and True; yes is a string to them
		is, err := strconv.ParseBool(value.Value)
		return []string{strconv.FormatBool(is)}, err
	}
	return []string{value.Value}, nil
}

func listTexts(of string, value *yaml.Node, wrong error) ([]string, error) {
	if value.Kind != yaml.SequenceNode {
		return nil, wrong
	}
	var all []string
	for i, item := range value.Content {
		item = follow(item)
		tag, want := "!!str", "a text"
		if of == "int32Slice" {
			tag, want = "!!int", "a whole number"
		}
		text, err := scalar(item, tag, fmt.Errorf("[%d]: got %s, want %s", i, described(item), want))
		if err != nil {
			return nil, err
		}
		all = append(all, text...)
	}
	switch of {
	case "namedCertKey", "stringArray":
		return all, nil
	case "int32Slice":
		return []string{strings.Join(all, ",")}, nil
	}
	return []string{record(all)}, nil
}

func mapTexts(value *yaml.Node, tag, want string, wrong error) ([]string, error) {
	if value.Kind != yaml.MappingNode {
		return nil, wrong
	}
	var all []string
	for i := 0; i < len(value.Content); i += 2 {
		name, item := value.Content[i].Value, follow(value.Content[i+1])
		text, err := scalar(item, tag, fmt.Errorf("%s: got %s, want %s", name, described(item), want))
		if err != nil {
			return nil, err
		}
		pair := name + "=" + text[0]
		if strings.Count(pair, "=") > 1 { // pflag parses the value as CSV only in this case
			pair = record([]string{pair})
		}
		all = append(all, pair)
	}
	return all, nil
}

// record returns a line of CSV, the syntax of flags with several values.
func record(values []string) string {
	if len(values) == 0 {
		return ""
	}
	var text strings.Builder
	w := csv.NewWriter(&text)
	_ = w.Write(values) // a write to memory cannot fail
	w.Flush()
	return strings.TrimSuffix(text.String(), "\n")
}

// described names the YAML type of a value, for messages.
func described(node *yaml.Node) string {
	switch node.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	}
	if node.Tag == "!!null" {
		return "nothing"
	}
	return strconv.Quote(node.Value)
}
