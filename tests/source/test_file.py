"""The text of a file as rules search it."""

from ddp_lint.source.file import SourceFile

WRITTEN = '''\
x = "a # b"  # a comment
y = """# text
# text"""  # a comment
z = 'it\\'s # text'  # a comment
u = r"\\" # text"  # a comment
# loader.sampler.set_epoch(epoch)
f = f"{a['#']}"
'''


def test_code_is_the_text_without_its_comments() -> None:
    code = SourceFile.of_text("program.py", WRITTEN).code
    assert "comment" not in code
    assert "set_epoch" not in code
    assert code.count("# text") == 4
    assert code.count("\n") == WRITTEN.count("\n")


def test_a_text_that_has_no_end_is_read_in_linear_time() -> None:
    text = '"""' * 3 + "# '''\n" * 200_000
    assert SourceFile.of_text("program.py", text).code
