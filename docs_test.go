package resilience_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

// Every link of the documents to a file of this project leads somewhere.
func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	fenced := regexp.MustCompile("(?s)```.*?```")
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(path), m[1]))
			require.NoError(t, err, "a link of %s", path)
		}
		return nil
	}))
}
