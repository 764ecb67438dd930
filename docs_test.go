package resilience_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every Go block of the documents stands under a line that names a region of a Go file, and equals it: since the file
// compiles, so does the document.
var regionLine = regexp.MustCompile(`^<!-- region: (\S+)#(\S+) -->$`)

func TestGoBlocksOfTheDocumentsAreRegionsOfCompiledFiles(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	blocks := 0
	for _, path := range append(documents, "README.md") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		before := ""
		lines := strings.Split(string(text), "\n")
		for i := 0; i < len(lines); i++ {
			if lines[i] != "```go" {
				if strings.TrimSpace(lines[i]) != "" {
					before = lines[i]
				}
				continue
			}
			start := i + 1
			for i++; lines[i] != "```"; i++ {
			}
			m := regionLine.FindStringSubmatch(before)
			require.NotNil(t, m, "%s:%d: a Go block without a region line above it", path, start)
			want, err := region(m[1], m[2])
			require.NoError(t, err, "%s:%d", path, start)
			require.Equal(t, want, strings.Join(lines[start:i], "\n"), "%s:%d differs from %s#%s", path, start, m[1], m[2])
			blocks++
		}
	}
	require.Positive(t, blocks)
}

// region is the text between "// region name" and "// endregion", without its common indentation.
func region(path, name string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var lines []string
	inside := false
	for line := range strings.SplitSeq(string(text), "\n") {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == "// region "+name:
			inside = true
		case inside && trimmed == "// endregion":
			return dedent(lines), nil
		case inside:
			lines = append(lines, line)
		}
	}
	return "", fmt.Errorf("%s has no region %s", path, name)
}

func dedent(lines []string) string {
	text := strings.Trim(strings.Join(lines, "\n"), "\n")
	indent := len(text) - len(strings.TrimLeft(text, "\t"))
	return strings.ReplaceAll("\n"+text, "\n"+strings.Repeat("\t", indent), "\n")[1:]
}

// A comment that follows another one without a blank line is one comment with it, and an "// Output:" in the middle of a
// comment is none: the example would compile and never run.
func TestRegionsDoNotSwallowTheOutputOfTheirExample(t *testing.T) {
	swallowed := regexp.MustCompile(`(?m)^[ \t]*// endregion\n[ \t]*// (Unordered )?[Oo]utput:`)
	everyFile(t, ".go", func(path, text string) {
		require.False(t, swallowed.MatchString(text), "%s: an // endregion directly above an // Output", path)
	})
}

// A block under a line that names an example is what that example prints.
func TestOutputsInTheDocumentsAreThoseOfExamples(t *testing.T) {
	printed := regexp.MustCompile("(?s)<!-- output: (\\S+)#Example_?(\\S+) -->\n```\n(.*?)```\n")
	found := 0
	everyDocument(t, func(path, text string) {
		require.Equal(t, strings.Count(text, "<!-- output:"), len(printed.FindAllString(text, -1)), path)
		for _, m := range printed.FindAllStringSubmatch(text, -1) {
			f, err := parser.ParseFile(token.NewFileSet(), m[1], nil, parser.ParseComments)
			require.NoError(t, err)
			examples := doc.Examples(f)
			i := slices.IndexFunc(examples, func(e *doc.Example) bool { return strings.Trim(e.Name, "_") == m[2] })
			require.GreaterOrEqual(t, i, 0, "%s: %s has no example %s", path, m[1], m[2])
			require.Equal(t, examples[i].Output, m[3], "%s differs from the output of %s#%s", path, m[1], m[2])
			found++
		}
	})
	require.Positive(t, found)
}

var fenced = regexp.MustCompile("(?s)```.*?```")

// Every link of the documents leads to a file of this project and, where it names one, to a heading in there.
func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	everyDocument(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			target := path
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "a link of %s", path)
			if m[2] != "" {
				require.Contains(t, anchors(t, target), m[2], "a link of %s to %s", path, target)
			}
		}
	})
}

// anchors are the headings of a document as links name them: in lower case, with hyphens, without punctuation.
func anchors(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		words := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found = append(found, strings.ReplaceAll(words, " ", "-"))
	}
	return found
}

// The names of this library that the documents put in backticks exist: options, events, errors and reasons, and fields and
// methods of its types. The page on migration speaks of other libraries too.
func TestNamesInTheDocumentsExist(t *testing.T) {
	names, members := exportedNames(t)
	span := regexp.MustCompile("`([^`\n]+)`")
	name := regexp.MustCompile(`(?:^|[^\w.]|resilience(?:http|test)?\.)((?:With|Without|Event|Err|Reason|Jitter)[A-Z]\w*)(?:[^\w…]|$)`)
	member := regexp.MustCompile(`(?:^|[^\w.]|resilience(?:http|test)?\.)([A-Z]\w*)\.([A-Z]\w*)`)
	everyDocument(t, func(path, text string) {
		if path == "docs/migration.md" || path == "docs/comparison.md" || path == "docs/benchmarks.md" {
			return
		}
		for _, s := range span.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			for _, m := range name.FindAllStringSubmatch(s[1], -1) {
				require.True(t, names[m[1]], "%s: there is no %s", path, m[1])
			}
			for _, m := range member.FindAllStringSubmatch(s[1], -1) {
				if members[m[1]] {
					require.True(t, members[m[1]+"."+m[2]], "%s: %s has no %s", path, m[1], m[2])
				}
			}
		}
	})
}

// exportedNames are those of the packages, and of those the types, with their fields and methods as Type.Member.
func exportedNames(t *testing.T) (names, members map[string]bool) {
	t.Helper()
	names, members = make(map[string]bool), make(map[string]bool)
	for _, dir := range packages {
		everyDeclaration(documented(t, dir), func(_ string, decl ast.Decl, _ string) {
			if f, ok := decl.(*ast.FuncDecl); ok {
				if f.Recv == nil {
					names[f.Name.Name] = true
				} else {
					members[receiver(f)+"."+f.Name.Name] = true
				}
				return
			}
			for _, spec := range decl.(*ast.GenDecl).Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						names[name.Name] = true
					}
				case *ast.TypeSpec:
					names[spec.Name.Name], members[spec.Name.Name] = true, true
					if s, ok := spec.Type.(*ast.StructType); ok {
						for _, field := range s.Fields.List {
							for _, name := range field.Names {
								members[spec.Name.Name+"."+name.Name] = true
							}
						}
					}
				}
			}
		})
	}
	return names, members
}

// receiver is the name of the type that a method belongs to.
func receiver(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	if pointer, ok := typ.(*ast.StarExpr); ok {
		typ = pointer.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	return typ.(*ast.Ident).Name
}

func everyDocument(t *testing.T, visit func(path, text string)) {
	t.Helper()
	everyFile(t, ".md", visit)
}

// everyFile visits the files of this project with that ending.
func everyFile(t *testing.T, ending string, visit func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			visit(path, string(text))
		}
		return err
	}))
}
