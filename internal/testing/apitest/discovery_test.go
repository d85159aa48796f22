package apitest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"

	"github.com/annexapi/annex"
)

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func TestDiscovery(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	// As client-go sees it, aggregated or not, and as in the documents themselves.
	client, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	old, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	old.UseLegacyDiscovery = true
	for name, client := range map[string]*discovery.DiscoveryClient{"aggregated": client, "old": old} {
		groups, lists, err := client.ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == "shop.example.com" })
		if i < 0 || groups[i].PreferredVersion.Version != "v1" || len(groups[i].Versions) != 2 {
			t.Errorf("%s: groups %v", name, groups)
		}
		var got []string
		for _, list := range lists {
			if !strings.HasPrefix(list.GroupVersion, "shop.example.com/") {
				continue
			}
			for _, r := range list.APIResources {
				if strings.Contains(r.Name, "/") {
					r.SingularName = "" // client-go derives another one
				}
				got = append(
					got,
					fmt.Sprintf(
						"%s %s %s %q %v %v %v %s/%s",
						list.GroupVersion,
						r.Name,
						r.Kind,
						r.SingularName,
						r.Namespaced,
						r.ShortNames,
						r.Categories,
						r.Group,
						r.Version,
					),
				)
				verbs := "create delete deletecollection get list patch update watch"
				if strings.Contains(r.Name, "/") {
					verbs = "get patch update"
				}
				if strings.Join(r.Verbs, " ") != verbs {
					t.Errorf("%s: %s has the verbs %v", name, r.Name, r.Verbs)
				}
			}
		}
		slices.Sort(got)
		for i, line := range got {
			// The two documents fill in the group of a resource differently.
			line = strings.TrimSuffix(line, " shop.example.com/v1")
			line = strings.TrimSuffix(line, " shop.example.com/v1beta1")
			got[i] = strings.TrimSuffix(line, " /")
		}
		want := []string{
			`shop.example.com/v1 shelves Shelf "shelf" false [] []`,
			`shop.example.com/v1 widgets Widget "widget" true [wd] [all]`,
			`shop.example.com/v1 widgets/scale Scale "" true [] [] autoscaling/v1`,
			`shop.example.com/v1 widgets/status Widget "" true [] []`,
			`shop.example.com/v1beta1 widgets Widget "widget" true [wd] [all]`,
			`shop.example.com/v1beta1 widgets/scale Scale "" true [] [] autoscaling/v1`,
			`shop.example.com/v1beta1 widgets/status Widget "" true [] []`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}

	aggregated := c.get("/apis", "Accept", aggregatedType).want(200)
	if aggregated.str("kind") != "APIGroupDiscoveryList" || aggregated.header.Get("Etag") == "" {
		t.Errorf("aggregated: %v %s", aggregated.header, aggregated.raw)
	}
	c.get("/apis", "Accept", aggregatedType, "If-None-Match", aggregated.header.Get("Etag")).want(304)
	if core := c.get("/api", "Accept", aggregatedType).want(200); core.str("kind") != "APIGroupDiscoveryList" {
		t.Errorf("core: %s", core.raw)
	}
	if list := c.get("/apis/shop.example.com").want(200); list.str("kind")+list.str("preferredVersion", "version") != "APIGroupv1" {
		t.Errorf("group: %s", list.raw)
	}
	c.get("/apis/shop.example.com/v2").want(404)
	c.get("/apis/other.example.com").want(404)
	if v := c.get("/version").want(200); !strings.HasPrefix(v.str("gitVersion"), "v1.") || v.str("major") != "1" {
		t.Errorf("version: %s", v.raw)
	}
}

func TestOpenAPI_infoAndSecurity(t *testing.T) {
	t.Parallel()
	declared := shop()
	declared.Title, declared.Version = "Tools and Toys", "v1.2.0+b 3"
	for _, test := range []struct {
		server                        annex.Server
		title, version, versionSuffix string
	}{
		{shop(), "shop", "unversioned", "+annex.shop"},
		{declared, "Tools and Toys", "v1.2.0+b 3", "+annex.shop.v1.2.0-b-3"},
	} {
		c := start(t, test.server)
		for path, schemes := range map[string][]string{
			"/openapi/v2":                          {"securityDefinitions"},
			"/openapi/v3/apis/shop.example.com/v1": {"components", "securitySchemes"},
		} {
			document := c.get(path).want(200)
			if title, version := document.str("info", "title"), document.str("info", "version"); title != test.title || version != test.version {
				t.Errorf("%s is %q in version %q, want %q, %q", path, title, version, test.title, test.version)
			}
			for field, want := range map[string]string{"type": "apiKey", "name": "authorization", "in": "header",
				"description": "Bearer Token authentication"} {
				if got := document.str(append(schemes, "BearerToken", field)...); got != want {
					t.Errorf("%s: %s of BearerToken: %q, want %q", path, field, got, want)
				}
			}
			// In version 3, kube-apiserver has the scheme and requires it nowhere.
			if security := fmt.Sprint(document.object()["security"]); path == "/openapi/v2" && security != "[map[BearerToken:[]]]" {
				t.Errorf("%s: security %s", path, security)
			}
		}
		got := c.get("/version").want(200).str("gitVersion")
		if parsed, err := utilversion.ParseSemantic(got); err != nil || parsed.Major() != 1 || !strings.HasSuffix(got, test.versionSuffix) {
			t.Errorf("/version says %q, %v", got, err)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	kinds := func(schemas map[string]any) []string {
		var all []string
		for name, s := range schemas {
			gvks, _ := s.(map[string]any)["x-kubernetes-group-version-kind"].([]any)
			for _, gvk := range gvks {
				g := gvk.(map[string]any)
				if g["version"] == "__internal" {
					t.Errorf("%s is of the internal version", name)
				}
				if g["group"] == "shop.example.com" && strings.HasPrefix(name, "com.example") ||
					g["group"] == "autoscaling" && strings.Contains(name, "autoscaling") {
					all = append(all, fmt.Sprintf("%s = %s/%s %s", name, g["group"], g["version"], g["kind"]))
				}
			}
		}
		slices.Sort(all)
		return all
	}
	v1Kinds := []string{
		"com.example.shop.v1.Shelf = shop.example.com/v1 Shelf",
		"com.example.shop.v1.ShelfList = shop.example.com/v1 ShelfList",
		"com.example.shop.v1.Widget = shop.example.com/v1 Widget",
		"com.example.shop.v1.WidgetList = shop.example.com/v1 WidgetList",
	}
	betaKinds := []string{
		"com.example.shop.v1beta1.Widget = shop.example.com/v1beta1 Widget",
		"com.example.shop.v1beta1.WidgetList = shop.example.com/v1beta1 WidgetList",
	}
	scale := []string{"io.k8s.api.autoscaling.v1.Scale = autoscaling/v1 Scale"}

	index := c.get("/openapi/v3").want(200)
	for path, want := range map[string][]string{
		"apis/shop.example.com/v1":      slices.Concat(v1Kinds, scale),
		"apis/shop.example.com/v1beta1": slices.Concat(betaKinds, scale),
	} {
		url := index.str("paths", path, "serverRelativeURL")
		document := c.get(url).want(200)
		if strings.Contains(string(document.raw), "__internal") {
			t.Errorf("%s names the internal version", path)
		}
		obj := document.object()
		schemas := obj["components"].(map[string]any)["schemas"].(map[string]any)
		if got := kinds(schemas); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", path, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		paths := obj["paths"].(map[string]any)
		for _, sub := range []string{"", "/status", "/scale"} {
			p := "/" + path + "/namespaces/{namespace}/widgets/{name}" + sub
			operations, ok := paths[p].(map[string]any)
			if !ok {
				t.Errorf("no path %s", p)
				continue
			}
			for _, verb := range []string{"get", "put", "patch"} {
				if operations[verb] == nil {
					t.Errorf("%s: no %s", p, verb)
				}
			}
			media := operations["patch"].(map[string]any)["requestBody"].(map[string]any)["content"].(map[string]any)
			for _, mediaType := range []string{jsonPatch, mergePatch, strategicType, applyPatch} {
				if media[mediaType] == nil {
					t.Errorf("%s: no patch by %s", p, mediaType)
				}
			}
		}
		// Every reference resolves.
		walk(obj, func(key string, value any) {
			ref, ok := value.(string)
			if key != "$ref" || !ok {
				return
			}
			if name, found := strings.CutPrefix(ref, "#/components/schemas/"); !found || schemas[name] == nil {
				t.Errorf("%s: dangling reference %s", path, ref)
			}
		})
	}

	v2 := c.get("/openapi/v2").want(200)
	if strings.Contains(string(v2.raw), "__internal") {
		t.Error("OpenAPI v2 names the internal version")
	}
	definitions := v2.object()["definitions"].(map[string]any)
	if got, want := kinds(definitions), slices.Concat(v1Kinds, betaKinds, scale); !slices.Equal(got, want) {
		t.Errorf("OpenAPI v2:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	walk(v2.object(), func(key string, value any) {
		if name, found := strings.CutPrefix(fmt.Sprint(value), "#/definitions/"); key == "$ref" && found && definitions[name] == nil {
			t.Errorf("OpenAPI v2: dangling reference %s", name)
		}
	})
	parts := definitions["com.example.shop.v1.WidgetSpec"].(map[string]any)["properties"].(map[string]any)["parts"].(map[string]any)
	if got := fmt.Sprint(
		parts["x-kubernetes-list-type"],
		parts["x-kubernetes-list-map-keys"],
		parts["x-kubernetes-patch-merge-key"],
		parts["x-kubernetes-patch-strategy"],
	); got != "map[name]namemerge" {
		t.Errorf("what clients need for merging: %s", got)
	}
}

func walk(value any, visit func(key string, value any)) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			visit(key, inner)
			walk(inner, visit)
		}
	case []any:
		for _, inner := range v {
			walk(inner, visit)
		}
	}
}
