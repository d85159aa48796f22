package plan

import (
	"fmt"
	"strings"

	"github.com/annexapi/annex/internal/model/define"
)

// completeQuery chooses the path prefix of the query API.
func (p *Plan) completeQuery() error {
	d, o := p.Definition, &p.Options
	p.QueryPrefix = d.QueryPrefix()
	if d.Query != (define.Query{}) {
		p.QueryPrefixFrom = Source{Developer, "Server.Query"}
	}
	if o.QueryPrefix != nil {
		p.QueryPrefix, p.QueryPrefixFrom = *o.QueryPrefix, Source{Operator, "Options.QueryPrefix"}
	}
	if err := define.CheckQueryPrefix(p.QueryPrefix); err != nil {
		return fmt.Errorf("Options.QueryPrefix: %w", err)
	}
	for _, h := range d.Handlers {
		if p.QueryPrefix != "" && !strings.HasSuffix(h.Path, "/") && (h.Path == p.QueryPrefix || strings.HasPrefix(h.Path, p.QueryPrefix+"/")) {
			return fmt.Errorf("Options.QueryPrefix %s conflicts with the handler at %s, whose path can be the path of a query: end the "+
				"handler's path with a slash, so that it handles only paths below it that are not queries, or move "+
				"one of them", p.QueryPrefix, h.Path)
		}
	}
	return nil
}
