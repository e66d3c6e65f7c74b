"""Sources: what they list, in which order, and what they refuse before any model is loaded."""
import base64
import json

import pytest

from lmdeploy_ext.classify.errors import SourceError
from lmdeploy_ext.classify.item import IdSet, Item
from lmdeploy_ext.classify.source import check_source, open_source

from .fakes import jpeg, write_images


def ids(source):
    return [item.id for item in source]


def write_jsonl(path, records):
    path.write_text(''.join(json.dumps(record, ensure_ascii=False) + '\n' for record in records),
                    encoding='utf-8')
    return str(path)


def request(id_, content, system=None):
    messages = [{'role': 'user', 'content': content}]
    if system is not None:
        messages.insert(0, {'role': 'system', 'content': system})
    return {
        'custom_id': id_,
        'method': 'POST',
        'url': '/v1/chat/completions',
        'body': {
            'model': 'm',
            'messages': messages
        }
    }


def image_part(url, **options):
    return {'type': 'image_url', 'image_url': {'url': url, **options}}


def test_a_folder_gives_its_image_files_sorted_by_relative_path(tmp_path):
    for name in ('b.jpg', 'a.PNG', 'notes.txt', '.hidden.jpg', 'sub/z.webp', 'sub/deep/y.jpeg',
                 'Archive/x.gif', '房间.tiff'):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'x')
    source = open_source([str(tmp_path)])
    assert ids(source) == [
        'a.PNG', 'b.jpg', '房间.tiff', 'Archive/x.gif', 'sub/z.webp', 'sub/deep/y.jpeg'
    ]
    assert ids(source) == ids(source)
    assert next(iter(source)).image == str(tmp_path / 'a.PNG')
    assert check_source(source).total == 6


def test_a_pattern_gives_the_image_files_that_match(tmp_path):
    write_images(tmp_path / 'a', 2)
    write_images(tmp_path / 'b', 1)
    (tmp_path / 'a' / 'readme.md').write_text('')
    source = open_source([f'{tmp_path}/**/*'])
    assert [item.image for item in source] == ids(source) == [
        f'{tmp_path}/a/00000.jpg', f'{tmp_path}/a/00001.jpg', f'{tmp_path}/b/00000.jpg'
    ]


def test_files_by_name_keep_the_order_given(tmp_path):
    paths = [str(path) for path in write_images(tmp_path, 3)][::-1]
    assert ids(open_source(paths)) == paths
    assert ids(open_source(paths[:1])) == paths[:1]


@pytest.mark.parametrize('newline', ['\n', '\r\n'])
def test_a_csv_manifest(tmp_path, newline):
    write_images(tmp_path / 'images', 3)
    lines = [
        'id,image,label,split', 'a,images/00000.jpg,是,test', ',images/00001.jpg,否,test',
        '"c,1",images/00002.jpg,是,train'
    ]
    manifest = tmp_path / 'manifest.csv'
    manifest.write_bytes(b'\xef\xbb\xbf' + newline.join(lines).encode())
    source = open_source([str(manifest)])
    assert [(item.id, item.label) for item in source] == [('a', '是'), ('images/00001.jpg', '否'),
                                                          ('c,1', '是')]
    assert next(iter(source)).image == str(tmp_path / 'images/00000.jpg')
    assert check_source(source).total == 3
    assert ids(open_source([str(manifest)], split='train')) == ['c,1']


def test_a_jsonl_manifest(tmp_path):
    paths = write_images(tmp_path, 2)
    manifest = write_jsonl(tmp_path / 'm.jsonl', [{
        'id': 0,
        'path': str(paths[0]),
        'label': 1
    }, {
        'image': 'https://example.org/x.jpg'
    }])
    first, second = open_source([manifest])
    assert (first.id, first.image, first.label) == ('0', str(paths[0]), '1')
    assert (second.id, second.image, second.is_remote) == ('https://example.org/x.jpg', ) * 2 + \
        (True, )


def test_an_openai_batch_file(tmp_path):
    write_images(tmp_path, 1)
    data = 'data:image/jpeg;base64,' + base64.b64encode(jpeg(1)).decode()
    batch = write_jsonl(tmp_path / 'batch.jsonl', [
        request('r1', [{
            'type': 'text',
            'text': 'A bed?'
        }, {
            'type': 'text',
            'text': 'Or two?'
        },
                       image_part('00000.jpg', detail='low')],
                system='Be brief.'),
        request('r2', [image_part(data)]),
        request('r3', [image_part('https://example.org/x.jpg', max_dynamic_patch=3)]),
        request('r4', [{
            'type': 'image_url',
            'image_url': 'file:///tmp/a%20b.jpg'
        }])
    ])
    first, second, third, fourth = open_source([batch])
    assert first == Item('r1', str(tmp_path / '00000.jpg'), None, 'A bed?\nOr two?', 'Be brief.',
                         {'detail': 'low'})
    assert second.is_inline and second.prompt is None and second.path == 'data:image/jpeg;base64'
    assert third.options == {'max_dynamic_patch': 3}
    assert fourth.image == '/tmp/a b.jpg'


@pytest.mark.parametrize('content, message', [
    ('no image', r'0 images in .x.; expected exactly one'),
    ([image_part('a'), image_part('b')], r'2 images in .x.; expected exactly one'),
    ([image_part('a', detail=['high'])], r"detail is \['high'\]; expected str"),
    ([image_part('a', max_dynamic_patch='6')], r"max_dynamic_patch is '6'; expected int"),
    ([image_part('a', max_dynamic_patch=True)], r'max_dynamic_patch is True; expected int'),
    ([image_part('a', max_dynamic_patch=0)], r'max_dynamic_patch is 0; expected 1 or more'),
    ([image_part('a', size=1)], r"unknown image option 'size'"),
    ([{
        'type': 'image_url',
        'image_url': {}
    }], r'an image without url'),
    ([{
        'type': 'audio'
    }], r"a part of type 'audio'; expected text or image_url"),
    (None, r'a message without content'),
])
def test_a_batch_request_that_cannot_be_asked_is_refused_with_its_line(tmp_path, content, message):
    good = request('good', [image_part('a.jpg')])
    batch = write_jsonl(tmp_path / 'b.jsonl', [good, request('x', content)])
    with pytest.raises(SourceError, match=f'b.jsonl, line 2: {message}'):
        list(open_source([batch]))


@pytest.mark.parametrize('record, message', [
    ({
        'custom_id': 3,
        'body': {}
    }, 'no custom_id'),
    ({
        'custom_id': 'x'
    }, 'no body.messages'),
    ({
        'custom_id': 'x',
        'body': {
            'messages': [{
                'role': 'user'
            }, {
                'role': 'user'
            }]
        }
    }, r"messages of the roles \['user', 'user'\]; expected one user message"),
    ({
        'custom_id': 'x',
        'body': {
            'messages': [{
                'role': 'system',
                'content': [image_part('a')]
            }, {
                'role': 'user',
                'content': 'b'
            }]
        }
    }, 'an image in the system message'),
])
def test_a_batch_line_that_is_no_request_is_refused(tmp_path, record, message):
    with pytest.raises(SourceError, match=f'line 1: {message}'):
        list(open_source([write_jsonl(tmp_path / 'b.jsonl', [record])]))


def test_missing_files_are_named_and_counted(tmp_path):
    write_images(tmp_path, 1)
    manifest = write_jsonl(tmp_path / 'm.jsonl', [{
        'image': name
    } for name in ('00000.jpg', 'p.jpg', 'q.jpg', 'r.jpg', 's.jpg', 't.jpg')])
    source = open_source([manifest])
    with pytest.raises(SourceError) as caught:
        check_source(source)
    message = str(caught.value)
    assert f'{tmp_path}/p.jpg, {tmp_path}/q.jpg, {tmp_path}/r.jpg and 2 more' in message
    assert '5 missing files' in message and '--allow-missing' in message
    assert '\n' not in message
    inventory = check_source(source, allow_missing=True)
    assert (inventory.total, inventory.missing) == (6, 5)


def test_duplicate_ids_are_refused(tmp_path):
    write_images(tmp_path, 2)
    manifest = write_jsonl(tmp_path / 'm.jsonl', [{
        'id': 'x',
        'image': '00000.jpg'
    }, {
        'id': 'x',
        'image': '00001.jpg'
    }])
    with pytest.raises(SourceError, match=r'1 duplicate ids in .*: x; every image needs an id'):
        check_source(open_source([manifest]))


def test_wanted_columns_that_are_not_there_are_refused(tmp_path):
    write_images(tmp_path, 1)
    manifest = tmp_path / 'm.csv'
    manifest.write_text('image,split\n00000.jpg,test\n')
    with pytest.raises(SourceError,
                       match="line 2: no label; found the columns image, split: add "
                       "a 'label' column"):
        check_source(open_source([str(manifest)], require_label=True))
    with pytest.raises(SourceError, match="no row of the split 'val'; found test"):
        check_source(open_source([str(manifest)], split='val'))
    manifest.write_text('image,label\n00000.jpg,a\n')
    with pytest.raises(SourceError, match='line 2: no split'):
        check_source(open_source([str(manifest)], split='val'))
    manifest.write_text('file,label\n00000.jpg,a\n')
    with pytest.raises(SourceError,
                       match='line 2: no image; expected a path in image or path, '
                       'found the columns file, label'):
        check_source(open_source([str(manifest)]))
    with pytest.raises(SourceError, match='has no splits; a split is read from a manifest'):
        open_source([str(tmp_path)], split='test')
    with pytest.raises(SourceError, match='has no labels; a label is read from a manifest'):
        open_source([str(tmp_path)], require_label=True)


@pytest.mark.parametrize('name, content, message', [
    ('m.jsonl', b'{"image": "a"}\n{oops\n', 'line 2: not JSON'),
    ('m.jsonl', b'["a"]\n', 'line 1: list; expected one JSON object a line'),
    ('m.csv', 'image,label\n房间.jpg,是\n'.encode('gbk'), 'is not UTF-8'),
    ('m.csv', b'image,label\na,b,c\n', 'line 2: more fields than the header names'),
    ('m.csv', b'image\n"' + b'x' * 200_000 + b'"\n', 'not CSV .field larger than field limit'),
    ('m.csv', b'image,image\na,b\n', "the column 'image' stands twice"),
    ('m.csv', b'image\n', 'no images in'),
    ('m.csv', b'image\n"a\nb.jpg"\n', r"missing files in .*a\\nb.jpg"),
    ('m.jsonl', b'[' * 100_000 + b'\n', 'line 1: nested too deeply'),
    ('m.jsonl', b'', 'no images in'),
],
                         ids=range(10))
def test_a_broken_manifest_is_refused_with_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        check_source(open_source([str(tmp_path / name)]))
    assert '\n' not in str(caught.value)


def test_inputs_that_are_nothing_are_refused(tmp_path):
    with pytest.raises(SourceError, match='no images in'):
        check_source(open_source([str(tmp_path)]))
    with pytest.raises(SourceError, match='no images in'):
        check_source(open_source([f'{tmp_path}/*.jpg']))
    (tmp_path / 'manifest.jsonl').write_text('')
    with pytest.raises(SourceError, match='did you mean .*manifest.jsonl'):
        open_source([str(tmp_path / 'manifst.jsonl')])
    (tmp_path / 'notes.txt').write_text('')
    with pytest.raises(SourceError, match='neither an image file'):
        open_source([str(tmp_path / 'notes.txt')])
    with pytest.raises(SourceError, match='a folder among several inputs'):
        open_source([str(tmp_path), str(tmp_path)])
    with pytest.raises(SourceError, match='no input'):
        open_source([])
    with pytest.raises(SourceError, match='1 missing files'):
        check_source(open_source(['gone.jpg', *map(str, write_images(tmp_path, 1))]))


def test_without_a_prompt_every_item_needs_its_own(tmp_path):
    batch = write_jsonl(tmp_path / 'b.jsonl', [
        request('r1', [{
            'type': 'text',
            'text': 'A bed?'
        }, image_part('https://h/x.jpg')]),
        request('r2', [image_part('https://h/x.jpg')])
    ])
    with pytest.raises(SourceError, match="no prompt for 'r2': give --prompt"):
        check_source(open_source([batch]), need_prompt=True)
    assert check_source(open_source([batch])).total == 2


def test_an_id_set_knows_ids_that_are_no_utf8():
    ids_ = IdSet()
    assert ids_.add('a') and not ids_.add('a') and ids_.add('\udcff.jpg')
    assert 'a' in ids_ and '\udcff.jpg' in ids_ and 'b' not in ids_
    assert len(ids_) == 2
