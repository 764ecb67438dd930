package resiliencetest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every exported field has a comment of its own, and one that is a function, or a method that takes one, says that it is
// called concurrently.
func TestFieldsAndCallbacksAreDocumented(t *testing.T) {
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".go" || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				for _, field := range n.Fields.List {
					if len(field.Names) == 0 || !field.Names[0].IsExported() {
						continue
					}
					text := field.Doc.Text() + field.Comment.Text()
					require.NotEmpty(t, text, "%s: field %s", e.Name(), field.Names[0])
					require.Len(t, field.Names, 1, "%s: %s share a comment", e.Name(), field.Names)
					requireConcurrency(t, field.Type, text, field.Names[0].Name)
				}
			case *ast.FuncDecl:
				for _, p := range n.Type.Params.List {
					if n.Name.IsExported() {
						requireConcurrency(t, p.Type, n.Doc.Text(), n.Name.Name)
					}
				}
			}
			return true
		})
	}
}

func requireConcurrency(t *testing.T, typ ast.Expr, text, name string) {
	t.Helper()
	if _, callback := typ.(*ast.FuncType); callback {
		require.Contains(t, strings.Join(strings.Fields(text), " "), "called concurrently", name)
	}
}
