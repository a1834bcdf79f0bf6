"""What a master says of its web page when it starts."""

from master_process import Master


def test_a_master_without_a_page_says_how_to_build_it_and_gives_no_link(tmp_path):
    (tmp_path / "empty").mkdir()
    master = Master(tmp_path).start("--web", tmp_path / "empty")
    answer = master.get("/", raw=True)
    master.stop()  # all it said is read then
    said = "\n".join(master.said)
    assert f"no index.html in {tmp_path / 'empty'}" in said and "Run scripts/web in the checkout" in said
    assert "#code=" not in said
    assert b"this master has no web page. Run scripts/web in the checkout" in answer


def test_a_master_with_a_page_gives_a_link_to_it(tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("the page")
    master = Master(tmp_path).start("--web", tmp_path / "page")
    answer = master.get("/", raw=True)
    master.stop()
    assert answer == b"the page"
    assert any(line.startswith("log in (once, within ten minutes): ") for line in master.said)
