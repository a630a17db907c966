//! Writes valid and broken GGUF files for the tests of this and other crates. It shares no code with the reader.

#[derive(Clone, Debug)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    U64(u64),
    I64(i64),
    F64(f64),
    /// A type id and the bytes of a value, valid or not.
    Raw(u32, Vec<u8>),
}

pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

pub fn list(of: u32, count: u64, elements: &[u8]) -> Value {
    let parts: [&[u8]; 3] = [&of.to_le_bytes(), &count.to_le_bytes(), elements];
    Value::Raw(9, parts.concat())
}

impl Value {
    fn encoded(&self) -> (u32, Vec<u8>) {
        match self {
            Self::U8(x) => (0, x.to_le_bytes().to_vec()),
            Self::I8(x) => (1, x.to_le_bytes().to_vec()),
            Self::U16(x) => (2, x.to_le_bytes().to_vec()),
            Self::I16(x) => (3, x.to_le_bytes().to_vec()),
            Self::U32(x) => (4, x.to_le_bytes().to_vec()),
            Self::I32(x) => (5, x.to_le_bytes().to_vec()),
            Self::F32(x) => (6, x.to_le_bytes().to_vec()),
            Self::Flag(x) => (7, vec![u8::from(*x)]),
            Self::Text(text) => (8, string(text.as_bytes())),
            Self::Texts(texts) => {
                let elements: Vec<u8> = texts.iter().flat_map(|t| string(t.as_bytes())).collect();
                list(8, texts.len() as u64, &elements).encoded()
            }
            Self::I32s(xs) => {
                let elements: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
                list(5, xs.len() as u64, &elements).encoded()
            }
            Self::F32s(xs) => {
                let elements: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
                list(6, xs.len() as u64, &elements).encoded()
            }
            Self::U64(x) => (10, x.to_le_bytes().to_vec()),
            Self::I64(x) => (11, x.to_le_bytes().to_vec()),
            Self::F64(x) => (12, x.to_le_bytes().to_vec()),
            Self::Raw(id, bytes) => (*id, bytes.clone()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: Vec<u8>,
    /// Innermost first.
    pub sizes: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
    /// A wrong offset for the header.
    pub offset: Option<u64>,
}

impl Tensor {
    /// The outermost dimension of `shape` is first.
    pub fn new(name: &str, type_id: u32, shape: &[usize], data: Vec<u8>) -> Self {
        Self {
            name: name.as_bytes().to_vec(),
            sizes: shape.iter().rev().map(|&size| size as u64).collect(),
            type_id,
            data,
            offset: None,
        }
    }

    pub fn f32(name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes());
        Self::new(name, 0, shape, bytes.collect())
    }
}

#[derive(Clone, Debug)]
pub struct File {
    pub version: u32,
    /// Alignment of tensor data. The caller adds the key `general.alignment` if it is not 32.
    pub alignment: usize,
    pub pairs: Vec<(Vec<u8>, Value)>,
    pub tensors: Vec<Tensor>,
    /// Wrong numbers of tensors and of pairs for the header.
    pub claimed: (Option<u64>, Option<u64>),
}

impl Default for File {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            pairs: Vec::new(),
            tensors: Vec::new(),
            claimed: (None, None),
        }
    }
}

impl File {
    pub fn pair(mut self, key: &str, value: Value) -> Self {
        self.pairs.push((key.as_bytes().to_vec(), value));
        self
    }

    pub fn text(self, key: &str, text: &str) -> Self {
        self.pair(key, Value::Text(text.to_owned()))
    }

    /// As u32, as llama.cpp's converter writes most sizes.
    pub fn size(self, key: &str, size: usize) -> Self {
        self.pair(key, Value::U32(size as u32))
    }

    pub fn number(self, key: &str, number: f32) -> Self {
        self.pair(key, Value::F32(number))
    }

    pub fn tensor(mut self, tensor: Tensor) -> Self {
        self.tensors.push(tensor);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (n_tensors, n_pairs) = self.claimed;
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(n_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            let (id, bytes) = value.encoded();
            out.extend(string(key));
            out.extend(id.to_le_bytes());
            out.extend(bytes);
        }
        let mut at = 0;
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.sizes.len() as u32).to_le_bytes());
            out.extend(tensor.sizes.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(at as u64).to_le_bytes());
            at = (at + tensor.data.len()).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }
}
