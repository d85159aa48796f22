package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/apidocument"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/program/serve"
	"github.com/annexapi/annex/store/memory"
)

func openapiCommand(program Program) *cobra.Command {
	return &cobra.Command{
		Use:   "openapi",
		Short: "Print an OpenAPI document of the server's own kinds",
		Long: `Print one OpenAPI v3 document, as JSON, of all versions of the kinds that the program
defines, with their queries and subresources. A running server has a document for each
version at /openapi/v3. annex generate --typescript reads this document.

The verb starts nothing: it needs no storage, and no data directory.`,
		Example: fmt.Sprintf(`  %[1]s openapi >openapi.json`, program.Name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.Context(), cmd.ErrOrStderr(), logText, 0)
			compiled, err := program.Define()
			if err != nil {
				return err
			}
			document, err := documentOf(cmd.Context(), compiled)
			if err != nil {
				return err
			}
			text, err := document.Text()
			if err != nil {
				return err
			}
			if _, err := cmd.OutOrStdout().Write(text); err != nil {
				return fmt.Errorf("openapi: %w", err)
			}
			return nil
		},
	}
}

// documentOf returns the document of a definition's own kinds, from a server over an empty memory that is not run.
func documentOf(ctx context.Context, compiled *definition.Definition) (document *apidocument.Document, err error) {
	groups := groupsOf(compiled.Server)
	if len(groups) == 0 {
		return nil, errors.New("openapi: the program defines no kinds")
	}
	p, err := plan.Everything(compiled.Server, config.Options{Storage: memory.Storage()})
	if err != nil {
		return nil, usage(err)
	}
	instance, err := serve.New(ctx, p, compiled.NewEnv)
	if err != nil {
		return nil, usage(err)
	}
	defer func() { err = errors.Join(err, instance.Close()) }()
	get, err := instance.Reader(ctx)
	if err != nil {
		return nil, fmt.Errorf("openapi: %w", err)
	}
	document, err = apidocument.Join(get, func(group string) bool { return slices.Contains(groups, group) })
	if err != nil {
		return nil, fmt.Errorf("openapi: %w", err)
	}
	return document, nil
}

func groupsOf(s *define.Server) []string {
	var all []string
	for _, k := range s.Kinds() {
		all = append(all, k.Group)
	}
	return all
}
