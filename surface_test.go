package resilience_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The exported surface is a promise: a name that appears or disappears has to be meant. go test -run Surface -update . writes
// the list anew.
func TestSurfaceIsTheOneThatIsPromised(t *testing.T) {
	var lines []string
	for _, dir := range []string{".", "resiliencehttp", "resiliencetest"} {
		lines = append(lines, surface(t, dir)...)
	}
	got := strings.Join(lines, "\n") + "\n"
	const path = "testdata/surface.golden"
	if update := flag.Lookup("update"); update != nil && update.Value.String() == "true" {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// Every exported name has a comment that says what it is; a constant of a block may have it at its end.
func TestEveryExportedNameIsDocumented(t *testing.T) {
	for _, dir := range []string{".", "resiliencehttp", "resiliencetest"} {
		p := documented(t, dir)
		require.NotEmpty(t, p.Doc, dir)
		check := func(name, text string) {
			require.NotEmpty(t, strings.TrimSpace(text), "%s: %s", dir, name)
		}
		for _, f := range p.Funcs {
			check(f.Name, f.Doc)
		}
		for _, typ := range p.Types {
			check(typ.Name, typ.Doc)
			for _, f := range slices.Concat(typ.Funcs, typ.Methods) {
				check(typ.Name+"."+f.Name, f.Doc)
			}
		}
	}
}

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

func surface(t *testing.T, dir string) []string {
	t.Helper()
	p := documented(t, dir)
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, p.Name+"."+fmt.Sprintf(format, args...)) }
	values := func(all []*doc.Value) {
		for _, v := range all {
			for _, name := range v.Names {
				if ast.IsExported(name) {
					add("%s", name)
				}
			}
		}
	}
	values(p.Consts)
	values(p.Vars)
	for _, f := range p.Funcs {
		add("%s()", f.Name)
	}
	for _, typ := range p.Types {
		add("%s", typ.Name)
		values(typ.Consts)
		values(typ.Vars)
		for _, f := range typ.Funcs {
			add("%s()", f.Name)
		}
		for _, m := range typ.Methods {
			add("%s.%s()", typ.Name, m.Name)
		}
		for _, spec := range typ.Decl.Specs {
			s, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					if name.IsExported() {
						add("%s.%s", typ.Name, name.Name)
					}
				}
			}
		}
	}
	slices.Sort(lines)
	return lines
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
