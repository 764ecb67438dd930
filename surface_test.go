package resilience_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var packages = []string{".", "resiliencehttp", "resiliencetest"}

// The exported surface is a promise: a declaration that appears, changes or disappears has to be meant. go test -run Surface
// -update . writes the list anew.
func TestSurfaceIsTheOneThatIsPromised(t *testing.T) {
	var text strings.Builder
	for _, dir := range packages {
		surface(t, &text, dir)
	}
	const path = "testdata/surface.golden"
	if update := flag.Lookup("update"); update != nil && update.Value.String() == "true" {
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text.String())
}

// Everything that is exported has a comment that says what it is: of a constant or a variable one of its own, or that of its
// block; of a field one above it or at the end of its line.
func TestEveryExportedNameIsDocumented(t *testing.T) {
	for _, dir := range packages {
		p := documented(t, dir)
		var missing []string
		check := func(name string, texts ...string) {
			if strings.TrimSpace(strings.Join(texts, "")) == "" {
				missing = append(missing, name)
			}
		}
		check("the package", p.Doc)
		everyDeclaration(p, func(name string, decl ast.Decl, text string) {
			block, ok := decl.(*ast.GenDecl)
			if !ok {
				check(name, text)
				return
			}
			for _, spec := range block.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					check(spec.Names[0].Name, text, spec.Doc.Text(), spec.Comment.Text())
				case *ast.TypeSpec:
					check(name, text)
					if s, ok := spec.Type.(*ast.StructType); ok {
						for _, field := range s.Fields.List {
							check(name+"."+fieldName(field), field.Doc.Text(), field.Comment.Text())
						}
					}
				}
			}
		})
		require.Empty(t, missing, "exported, and without a comment in %s", dir)
	}
}

// everyDeclaration calls visit with each exported declaration, its name, of a block the first one, and its comment.
func everyDeclaration(p *doc.Package, visit func(name string, decl ast.Decl, text string)) {
	values := func(all []*doc.Value) {
		for _, v := range all {
			visit(v.Names[0], v.Decl, v.Doc)
		}
	}
	funcs := func(all []*doc.Func, of string) {
		for _, f := range all {
			visit(of+f.Name, f.Decl, f.Doc)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs, "")
	for _, typ := range p.Types {
		visit(typ.Name, typ.Decl, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs, "")
		funcs(typ.Methods, typ.Name+".")
	}
}

// fieldName is empty for an embedded field.
func fieldName(f *ast.Field) string {
	var names []string
	for _, name := range f.Names {
		names = append(names, name.Name)
	}
	return strings.Join(names, ", ")
}

// documented is what go doc knows of a package: what is not exported, unexported fields included, is gone from it.
func documented(t *testing.T, dir string) *doc.Package {
	t.Helper()
	fset := token.NewFileSet()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var files []*ast.File
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments)
			require.NoError(t, err)
			files = append(files, f)
		}
	}
	p, err := doc.NewFromFiles(fset, files, "github.com/measuredgo/resilience/"+dir)
	require.NoError(t, err)
	return p
}

// surface writes the declarations of a package as they stand, without comments, and without the values of variables that
// have a type.
func surface(t *testing.T, w *strings.Builder, dir string) {
	t.Helper()
	p := documented(t, dir)
	fmt.Fprintf(w, "package %s\n", p.Name)
	everyDeclaration(p, func(_ string, decl ast.Decl, _ string) {
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GenDecl:
				n.Doc = nil
			case *ast.FuncDecl:
				n.Doc, n.Body = nil, nil
			case *ast.TypeSpec:
				n.Doc, n.Comment = nil, nil
			case *ast.StructType:
				n.Incomplete = false // which would be told in a comment
			case *ast.InterfaceType:
				if n.Incomplete { // nobody else can implement it
					n.Incomplete = false
					hidden := &ast.Field{Names: []*ast.Ident{ast.NewIdent("unexported")}, Type: &ast.FuncType{Params: &ast.FieldList{}}}
					n.Methods.List = append(n.Methods.List, hidden)
				}
			case *ast.Field:
				n.Doc, n.Comment = nil, nil
			case *ast.ValueSpec:
				n.Doc, n.Comment = nil, nil
				if n.Type != nil && decl.(*ast.GenDecl).Tok == token.VAR {
					n.Values = nil
				}
			}
			return true
		})
		w.WriteString("\n")
		require.NoError(t, format.Node(w, token.NewFileSet(), decl)) // positions of another set: no blank lines of the source
		w.WriteString("\n")
	})
	w.WriteString("\n")
}

// The library imports nothing but the standard library and itself.
func TestTheLibraryImportsOnlyTheStandardLibrary(t *testing.T) {
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (path == "bench/peers" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return either(err, fs.SkipDir)
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range f.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			first, _, _ := strings.Cut(imported, "/")
			ours := imported == "github.com/measuredgo/resilience" || strings.HasPrefix(imported, "github.com/measuredgo/resilience/")
			require.True(t, ours || !strings.Contains(first, "."), "%s imports %s", path, imported)
		}
		return nil
	}))
}

func either(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
